"""The debate example in a short form: real processes from the manifest to committed weights and baselines."""

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

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples/debate.yaml"


def short(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The example with a few steps of small batches."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    small = {
        "spec.model.name": str(write_model(folder / "model")),
        "spec.maxSteps": 3,
        "spec.algorithm.batchSize": 8,
        # Random weights tie most debates.
        "spec.algorithm.filters": [],
        "spec.environments.eval.0.numExamples": 4,
        "spec.checkpoint": {"interval": 2, "keepLast": 2},
    }
    for path, value in {**small, **changes}.items():
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
    changes = {
        "spec.model.lora": {"rank": 8, "alpha": 16, "targetModules": ["q_proj", "v_proj", "down_proj"]},
        "spec.environments.train.0.members": {"b": {"policy": "base"}},
        "spec.environments.train.0.args.learner_seat": "a",
    }
    with local_run(tmp_path / "debate", short(tmp_path, changes)) as run:
        _, rows = finished(run)
        for row in rows:
            # One unit an episode: the frozen seat trains nothing, and one engine serves both.
            assert (row["batch/episodes"], 0 < row["batch/samples"] <= 8) == (8, True)
            assert row["gap/over_tolerance"] == 0
            assert row["reward/debate/b"] == -row["reward/debate/a"]
        assert rows[-1]["version/high"] > 0


@longer_run("debate of copies")
def test_two_copies_of_a_policy_debate_and_learn(tmp_path: Path) -> None:
    with local_run(tmp_path / "debate", short(tmp_path, {})) as run:
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
