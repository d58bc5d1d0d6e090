"""How a process of the operator is started."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import msgspec
import pytest

from echorl_core.names import ExitCode
from echorl_manifest.validation import parsed
from echorl_operator import __main__ as program
from echorl_operator.kube.election import EXIT_LOST_LEADERSHIP
from echorl_operator.names import GROUP, KIND, VERSION
from echorl_operator.observed import decode

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _limit_of_recursion() -> Iterator[None]:
    """The operator's is its process's; other tests of this one have Python's."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


def test_a_pod_is_the_same_candidate_after_a_restart_of_its_container() -> None:
    pod = {"POD_NAME": "echorl-operator-6d5-x2x", "POD_UID": "0a1b"}
    assert program.instance_of(pod) == program.instance_of(dict(pod)) == "echorl-operator-6d5-x2x_0a1b"
    assert program.instance_of({**pod, "POD_UID": "0a1c"}) != program.instance_of(pod)


@pytest.mark.parametrize("environ", [{}, {"POD_NAME": "x"}, {"POD_NAME": "x", "POD_UID": ""}])
def test_a_process_that_does_not_know_its_pod_is_a_new_candidate(environ: dict[str, str]) -> None:
    assert program.instance_of(environ) != program.instance_of(environ)


def test_the_exit_code_of_a_lost_lease_is_its_own_and_told() -> None:
    assert EXIT_LOST_LEADERSHIP not in set(ExitCode)
    assert f"{EXIT_LOST_LEADERSHIP} the lease was lost" in " ".join((program.__doc__ or "").split())
    assert f"{EXIT_LOST_LEADERSHIP} the lease was lost" in (REPOSITORY / "docs" / "operator" / "README.md").read_text()


@pytest.mark.parametrize("settings", ["masterKeyPath: /nowhere", "masterKeyPath: [1]", "[]", "unknown: 1"])
def test_bad_settings_end_with_2(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(settings)
    assert program.main(["--settings", str(file), "--namespace", "x"]) == ExitCode.BAD_INPUT


def test_a_run_as_deep_as_the_api_server_takes_is_decoded_and_refused(tmp_path: Path) -> None:
    program.main(["--settings", str(tmp_path / "nowhere.yaml")])
    depth = 9_990
    spec = b'{"environments": {"train": [{"name": "e", "type": "a:b", "args": {"x": %s%s}}]}}' % (
        b"[" * depth,
        b"]" * depth,
    )
    body = b'{"metadata": {"name": "one", "namespace": "ns"}, "spec": %s}' % spec
    line = b'{"type": "ADDED", "object": %s}' % body
    assert json.loads(line)["type"] == "ADDED", "as kopf reads it"
    record = decode.run(msgspec.json.decode(line, type=dict[str, msgspec.Raw])["object"])
    manifest = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": "one"}, "spec": record.spec}
    run, problems = parsed(manifest)
    assert run is None
    assert any("nested deeper" in str(problem) for problem in problems)


def test_the_operators_environment_has_no_torch() -> None:
    pinned = (REPOSITORY / "requirements" / "operator.txt").read_text()
    packages = {line.partition("==")[0].strip().lower() for line in pinned.splitlines() if "==" in line}
    declared = {one.partition(";")[0].strip().lower() for one in requires("echorl-operator") or ()}
    heavy = {"torch", "transformers", "vllm", "triton", "safetensors", "tokenizers", "renderers"}
    assert {"kopf", "kubernetes", "aiohttp"} <= packages
    assert not heavy & (packages | declared)
    assert not [name for name in packages if name.startswith(("nvidia-", "torch"))]
