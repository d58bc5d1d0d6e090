"""The debate example in a short form: real processes from the manifest to committed weights and baselines."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from echorl_core import checkpoints
from echorl_core.names import ExitCode
from echorl_orchestrator.sealing import read_state
from echorl_testing.local_run import local_run, write_model
from echorl_testing.manifests import with_value

EXAMPLE = Path(__file__).parents[2] / "examples/debate.yaml"


@pytest.mark.vllm
def test_two_copies_of_a_policy_debate_and_learn(tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    changes = {
        "spec.model.name": str(write_model(tmp_path / "model")),
        "spec.maxSteps": 3,
        "spec.algorithm.batchSize": 8,
        # Random weights tie most debates.
        "spec.algorithm.filters": [],
        "spec.environments.eval.0.numExamples": 4,
        "spec.checkpoint": {"interval": 2, "keepLast": 2},
    }
    for path, value in changes.items():
        document = with_value(document, path, value)
    with local_run(tmp_path / "debate", document) as run:
        assert run.start().ended(300) == ExitCode.OK, run.output()[-4000:]
        found, _ = checkpoints.committed(run.directory)
        assert found[-1].manifest.step == 3
        rows = [json.loads(row) for row in (run.directory.records(1) / "steps.jsonl").read_text().splitlines()]
        for row in rows:
            # Two units an episode; a turn in which random weights spell a reasoning tag trains nothing.
            assert (row["batch/episodes"], 8 < row["batch/samples"] <= 16) == (8, True)
            assert row["reward/debate/a"] == -row["reward/debate/b"]
            assert row["gap/over_tolerance"] == 0
        state = read_state((found[-1].folder / "attempt_1/orchestrator/state.bin").read_bytes())
        assert state.baselines is not None
        kept = msgspec.to_builtins(state.baselines.baselines)
        assert {one["member"] for one in kept} == {"a", "b"}
        values = {(one["task"], one["member"]): one["value"] for one in kept}
        assert all(
            value == pytest.approx(-values[task, "b"]) for (task, member), value in values.items() if member == "a"
        )
