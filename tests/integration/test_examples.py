"""The examples of mode rl in short forms, with a model of random weights: from the manifest to committed weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_core import checkpoints
from echorl_core.names import ExitCode
from echorl_testing.local.local_run import local_run, longer_run, write_model
from echorl_testing.manifests.documents import with_value

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLES_OF_RL = ["quickstart", "quickstart-rl-only", "rlvr", "consultancy"]
STEPS = 3
SHORT = {
    "spec.maxSteps": STEPS,
    "spec.algorithm.batchSize": 8,
    "spec.algorithm.groupSize": 4,
    # Random weights earn nothing that tells the episodes of a group apart.
    "spec.algorithm.filters": [],
    "spec.environments.eval.0.numExamples": 4,
    "spec.checkpoint": {"interval": 2, "keepLast": 2},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("examples") / "model")


@pytest.mark.vllm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [pytest.param(name, marks=longer_run(name)) for name in EXAMPLES_OF_RL])
def test_an_example_trains_and_evaluates(name: str, tmp_path: Path, model: Path) -> None:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    for path, value in {**SHORT, "spec.model.name": str(model)}.items():
        document = with_value(document, path, value)
    held_out = document["spec"]["environments"]["eval"][0]["name"]
    with local_run(tmp_path, document) as run:
        assert run.start().ended(800) == ExitCode.OK, run.output()[-4000:]
        found, _ = checkpoints.committed(run.directory)
        assert found[-1].manifest.step == STEPS
        rows = [json.loads(row) for row in (run.directory.records(1) / "steps.jsonl").read_text().splitlines()]
        assert [(row["step"], row["batch/episodes"], row["gap/over_tolerance"]) for row in rows] == [
            (step, 8, 0) for step in range(1, STEPS + 1)
        ]
        report = json.loads((run.root / "report.json").read_text())
        assert report["eval"][held_out]["step"] == [0, STEPS]
