"""The debates of the examples in short forms: real processes from the manifest to committed weights and baselines."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from echorl_core import checkpoints
from echorl_core.names import ExitCode
from echorl_orchestrator.batches.sealing import read_state
from echorl_testing.local.local_run import LocalRun, local_run, longer_run, write_model
from echorl_testing.manifests.documents import with_value
from examples.judge.server import serving

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def short(folder: Path, name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """An example with a few steps of small batches."""
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    small = {
        "spec.model.name": str(write_model(folder / "model")),
        "spec.maxSteps": 3,
        "spec.algorithm.batchSize": 8,
        # Random weights tie most debates.
        "spec.algorithm.filters": [],
        "spec.environments.eval.0.numExamples": 4,
        "spec.checkpoint": {"interval": 2, "keepLast": 2},
    }
    for path, value in {**small, **(changes or {})}.items():
        document = with_value(document, path, value)
    return document


def finished(run: LocalRun) -> tuple[Path, list[dict[str, Any]]]:
    """Folder of the last checkpoint, and the rows of all steps, of a run that came to its end."""
    assert run.start().ended(800) == ExitCode.OK, run.output()[-4000:]
    found, _ = checkpoints.committed(run.directory)
    assert found[-1].manifest.step == 3
    rows = (run.directory.records(1) / "steps.jsonl").read_text().splitlines()
    return found[-1].folder, [json.loads(row) for row in rows]


@longer_run("debate against the base")
def test_an_adapter_debates_against_the_model_under_it(tmp_path: Path) -> None:
    """Tasks teach both seats: the base, which the manifest seats at b, takes the other one."""
    with local_run(tmp_path / "debate", short(tmp_path, "debate-frozen")) as run:
        folder, rows = finished(run)
        for row in rows:
            # One unit an episode: the frozen seat trains nothing, and one engine serves both.
            assert (row["batch/episodes"], 0 < row["batch/samples"] <= 8) == (8, True)
            assert row["gap/over_tolerance"] == 0
            assert row["reward/debate/b"] == -row["reward/debate/a"]
            assert "failures/env" not in row
        assert rows[-1]["version/high"] > 0
        assert members_with_baselines(folder) == {("a", None), ("b", None)}


def members_with_baselines(folder: Path) -> set[tuple[str, int | str | None]]:
    """Member and task of each baseline in a checkpoint."""
    state = read_state((folder / "attempt_1/orchestrator/state.bin").read_bytes())
    assert state.baselines is not None
    return {(one.member, one.task) for one in state.baselines.baselines}


@longer_run("a judged debate")
def test_two_copies_of_a_policy_debate_before_a_judge_behind_an_endpoint(tmp_path: Path) -> None:
    with serving(0) as url:
        document = short(tmp_path, "debate-judged", {"spec.environments.train.0.members.judge.url": url})
        with local_run(tmp_path / "debate", document) as run:
            folder, rows = finished(run)
            episodes = [
                json.loads(row) for row in (run.directory.records(1) / "episodes.jsonl").read_text().splitlines()
            ]
    for row in rows:
        assert (row["batch/episodes"], 8 < row["batch/samples"] <= 16) == (8, True)
        assert row["reward/debate/a"] == -row["reward/debate/b"]
        assert row["reward/debate/judge"] == 0
    # The judge trains nothing, and what it says decides.
    assert members_with_baselines(folder) == {("a", None), ("b", None)}
    debates = [row for row in episodes if row["kind"] == "train"]
    assert {row["member"] for row in debates} == {"a", "b"}
    for row in debates:
        said = row["transcript"][-1]
        assert (said["slot"], said["member"]) == ("verdict", "judge")
        side = {"=A": "a", "=B": "b"}.get(said["text"])
        wanted = 0 if side is None else 1 if side == row["member"] else -1
        assert row["reward"] == wanted


@longer_run("debate of copies")
def test_two_copies_of_a_policy_debate_and_learn(tmp_path: Path) -> None:
    with local_run(tmp_path / "debate", short(tmp_path, "debate")) as run:
        folder, rows = finished(run)
        for row in rows:
            # Two units an episode; a turn in which random weights spell a reasoning tag trains nothing.
            assert (row["batch/episodes"], 8 < row["batch/samples"] <= 16) == (8, True)
            assert row["reward/debate/a"] == -row["reward/debate/b"]
            assert row["gap/over_tolerance"] == 0
        state = read_state((folder / "attempt_1/orchestrator/state.bin").read_bytes())
        assert state.baselines is not None
        kept = msgspec.to_builtins(state.baselines.baselines)
        assert {one["member"] for one in kept} == {"a", "b"}
        values = {(one["task"], one["member"]): one["value"] for one in kept}
        assert all(
            value == pytest.approx(-values[task, "b"]) for (task, member), value in values.items() if member == "a"
        )
