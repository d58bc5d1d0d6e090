"""``echorl render --diff RUN``: a run's frozen rendering against a new one, its verdict and its exit codes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_cli.cluster.compare import SETTINGS_KEY, SETTINGS_MAP, UNREACHABLE
from echorl_manifest import load
from echorl_operator.children import Rendering, render, to_revision
from echorl_operator.settings import Settings
from echorl_operator.settings_file import read_settings
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.manifests.documents import with_name, with_value

UID = "5f1c0a52-7c0e-4f4b-9d1a-2f1f9f0f8f11"
RUNS = "/apis/echorl.dev/v1alpha1/namespaces/lab/echorlruns"
REVISIONS = "/apis/apps/v1/namespaces/lab/controllerrevisions"
SETTINGS = read_settings(None)
HERE = "/api/v1/namespaces/lab/configmaps"


def document(**spec: Any) -> dict[str, Any]:
    return with_name("one", maxSteps=20, **spec)


def rendering(found: dict[str, Any], settings: Settings = SETTINGS) -> Rendering:
    return render(load(found), uid=UID, namespace="lab", generation=1, settings=settings)


class Place:
    """A cluster with one run in its second attempt, and the commands of somebody who looks at it."""

    def __init__(self, api: WireApi, folder: Path) -> None:
        self.api, self.folder = api, folder

    async def has(self, found: dict[str, Any], frozen: Rendering, **status: Any) -> None:
        revision = to_revision(frozen, load(found), 2, 1)
        name = revision["metadata"]["name"]
        await self.api.set(REVISIONS, name, **revision)
        told = {"phase": "Running", "attempt": 2, "revision": name, "observedGeneration": 1}
        metadata = {"uid": UID, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
        await self.api.set(RUNS, "one", metadata=metadata, spec=found["spec"], status=told | status)
        await self.api.set(HERE, SETTINGS_MAP, data={SETTINGS_KEY: "{}"})

    def file(self, found: dict[str, Any]) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(found))
        return path

    async def diff(self, *arguments: Any) -> Result:
        cluster = {"name": "a", "cluster": {"server": self.api.url}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "lab"}}
        content = {"clusters": [cluster], "contexts": [context], "users": [{"name": "a", "user": {}}]}
        path = self.folder / "kubeconfig"
        path.write_text(yaml.safe_dump({**content, "current-context": "a"}))
        words = ["render", *map(str, arguments), "--diff", "one", "--kubeconfig", str(path)]
        return await asyncio.to_thread(lambda: CliRunner().invoke(app_for(words), words))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with WireApi() as api:
        yield Place(api, tmp_path)


async def test_nothing_differs(place: Place) -> None:
    await place.has(document(), rendering(document()))
    told = await place.diff()
    assert (told.exit_code, told.stderr) == (0, "")
    assert told.stdout.endswith("\nthe manifest: nothing differs\n")
    assert "attempt 2 was rendered by EchoRL" in told.stdout
    assert (await place.diff(place.file(document()))).exit_code == 0


async def test_another_version_differs_and_waits_for_the_next_attempt(place: Place) -> None:
    before = SETTINGS.model_copy(update={"operator_version": "0.0.1"})
    await place.has(document(), rendering(document(), before))
    told = await place.diff()
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert lines[0].startswith("run one: attempt 2 was rendered by EchoRL 0.0.1; this is ")
    assert lines[1:3] == [
        "the manifest: changes nothing itself",
        "it takes effect at the next attempt, or with the next edit",
    ]
    changed = [line for line in lines if line[:1] in {"-", "+"} and not line.startswith(("---", "+++"))]
    assert changed
    assert all("image: echorl/" in line for line in changed)
    assert "--- attempt 2: StatefulSet one-trainer" in lines


async def test_the_installations_settings_are_used(place: Place) -> None:
    own = Settings.model_validate({"operatorVersion": SETTINGS.operator_version, "images": {"trainer": "x/y:1"}})
    await place.has(document(), rendering(document(), own))
    told = await place.diff()
    assert told.exit_code == 1
    assert "-        image: x/y:1\n" in told.stdout
    await place.api.set(HERE, SETTINGS_MAP, data={SETTINGS_KEY: "images: {trainer: 'x/y:1'}"})
    assert (await place.diff()).exit_code == 0
    await place.api.remove(HERE, SETTINGS_MAP)
    told = await place.diff()
    assert told.exit_code == 1
    assert "looked for the ConfigMap echorl-operator-settings in lab, echorl-system, there is none" in told.stderr
    file = place.folder / "settings.yaml"
    file.write_text("images: {trainer: 'x/y:1'}")
    told = await place.diff("--settings", file)
    assert (told.exit_code, told.stderr) == (0, "")


OVER = {"completionTime": "2026-01-01T00:00:00Z"}
EDITS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "live": ({"maxSteps": 30}, {}, "it applies live: no pod of the gang restarts"),
    "restart": ({"trainer": {"replicas": 2}}, {}, "the gang restarts as attempt 3, from its last checkpoint"),
    "refused": ({"seed": 7}, {}, "the API server refuses it: spec.seed"),
    "suspend": ({"suspend": True}, {}, "the run is suspended: its pods end, and it takes effect when it goes on"),
    "suspended": ({"maxSteps": 30}, {"phase": "Suspended"}, "the run goes on as attempt 3, from its last checkpoint"),
    "failed": ({"maxSteps": 30}, {"phase": "Failed", **OVER}, "the run goes on as attempt 3, from its last checkpoint"),
    "ended": ({"maxSteps": 10}, {"phase": "Succeeded", **OVER}, "the run has ended as Succeeded, and stays so"),
    "more": (
        {"maxSteps": 30},
        {"phase": "Succeeded", **OVER},
        "the run goes on as attempt 3, from its last checkpoint",
    ),
}


@pytest.mark.parametrize("case", EDITS)
async def test_what_an_edit_does(place: Place, case: str) -> None:
    spec, status, sentence = EDITS[case]
    await place.has(document(), rendering(document()), **status)
    told = await place.diff(place.file(with_name("one", **({"maxSteps": 20} | spec))))
    assert (told.exit_code, told.stderr) == (1, "")
    _, changed, verdict = told.stdout.splitlines()[:3]
    assert verdict == sentence
    assert f"changes spec.{next(iter(spec))}" in changed


async def test_a_stored_edit_that_no_operator_has_seen(place: Place) -> None:
    await place.has(document(), rendering(document()))
    body = place.api.objects[RUNS, "one"]
    await place.api.set(RUNS, "one", **with_value(with_value(body, "spec.maxSteps", 30), "metadata.generation", 2))
    told = await place.diff()
    assert told.exit_code == 1
    assert told.stdout.splitlines()[1:3] == [
        "the manifest: changes spec.maxSteps (applies live)",
        "it applies live: no pod of the gang restarts",
    ]
    assert "-max_steps: 20\n+max_steps: 30\n" in told.stdout


async def test_an_edit_shows_configs_and_children(place: Place) -> None:
    await place.has(document(), rendering(document()))
    told = await place.diff(place.file(document(trainer={"replicas": 3})), "--set", "maxSteps=21")
    assert "--- attempt 2: config of trainer" in told.stdout
    assert "-max_steps: 20\n+max_steps: 21\n" in told.stdout
    assert "-  replicas: 1\n+  replicas: 3\n" in told.stdout
    assert "echorl.dev/hash" not in told.stdout


async def test_what_touches_no_child_is_a_difference_too(place: Place) -> None:
    await place.has(document(), rendering(document()))
    told = await place.diff(place.file(document(ttlSecondsAfterFinished=60)))
    assert told.exit_code == 1
    assert "changes spec.ttlSecondsAfterFinished (applies live)\n" in told.stdout
    assert told.stdout.endswith("no role's config and no child differs\n")


async def without_attempt(place: Place) -> None:
    await place.has(document(), rendering(document()), revision="", attempt=0)


async def without_revision(place: Place) -> None:
    await place.has(document(), rendering(document()), revision="one-9-9")


async def of_another_format(place: Place) -> None:
    await place.has(document(), rendering(document()))
    ((where, name), body) = next(item for item in place.api.objects.items() if item[0][0] == REVISIONS)
    await place.api.set(where, name, **{**body, "data": {"format": 99}})


async def refused_today(place: Place) -> None:
    await place.has(document(), rendering(document()))
    body = place.api.objects[RUNS, "one"]
    await place.api.set(RUNS, "one", **with_value(body, "spec.maxSteps", -1))


CANNOT: dict[Callable[[Place], Any], str] = {
    without_attempt: "run one has begun no attempt",
    without_revision: "its ControllerRevision one-9-9 is gone",
    of_another_format: "found format 99, accepted is 1",
    refused_today: "run one: spec.maxSteps: found -1",
}


@pytest.mark.parametrize("made", CANNOT, ids=lambda made: made.__name__)
async def test_what_cannot_be_compared_is_bad_input(place: Place, made: Callable[[Place], Any]) -> None:
    await made(place)
    told = await place.diff()
    assert (told.exit_code, told.stdout) == (2, "")
    assert CANNOT[made] in told.stderr


async def test_a_file_of_another_run_and_one_that_no_cluster_takes(place: Place) -> None:
    await place.has(document(), rendering(document()))
    told = await place.diff(place.file(with_name("two")))
    assert (told.exit_code, told.stdout) == (2, "")
    assert "metadata.name: found 'two', accepted: 'one'" in told.stderr
    told = await place.diff(place.file(document(trainer={"template": {"spec": {"hostPID": True}}})))
    assert (told.exit_code, told.stdout) == (2, "")
    assert "run.yaml: spec.trainer.template.spec.hostPID: " in told.stderr


async def test_a_cluster_that_does_not_answer_is_no_difference(place: Place) -> None:
    await place.api.__aexit__()
    told = await place.diff()
    assert (told.exit_code, told.stdout) == (UNREACHABLE, "")
    assert "does not answer" in told.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "found no FILE"),
        (["--diff", "one", "--set", "maxSteps=3"], "found no FILE"),
        (["--diff", "one", "--arrows"], "found --arrows and --diff"),
        (["--diff", "one", "-f", "json"], "found --format json with --diff"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], said: str) -> None:
    told = CliRunner().invoke(app_for(["render"]), ["render", *options])
    assert told.exit_code == 2
    assert said in told.stderr
