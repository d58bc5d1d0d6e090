"""A user's own loss in a trainer process, from a folder of the user's."""

import json
import os
from pathlib import Path

import pytest

from echorl_core.config import HookConfig, LossConfig
from echorl_core.names import ExitCode
from echorl_testing.trainer.batches import record
from echorl_testing.trainer.tiny_learner import tiny_config, tiny_model
from echorl_testing.warm import Program

OWN = """
from echorl_trainer.losses import LossInputs, LossOutputs


def loss(inputs: LossInputs, *, width: float) -> LossOutputs:
    log_ratio = inputs.policy_logprobs - inputs.sampler_logprobs
    tokens = -inputs.advantages * width * (log_ratio / width).tanh()
    return LossOutputs(tokens, {"log_ratio": log_ratio})


def total(inputs: LossInputs) -> LossOutputs:
    return LossOutputs(inputs.policy_logprobs.sum())
"""


@pytest.mark.parametrize(
    ("hook", "code", "told"),
    [
        (HookConfig(import_path="my_losses:loss", kwargs={"width": 0.5}), ExitCode.OK, "replay done"),
        (HookConfig(import_path="my_losses:loss"), ExitCode.BAD_INPUT, "'my_losses:loss': raised TypeError"),
        (HookConfig(import_path="my_losses:total"), ExitCode.BAD_INPUT, "loss is a float32 tensor of shape []"),
        (HookConfig(import_path="my_losses:absent"), ExitCode.BAD_INPUT, "has no 'absent'"),
    ],
    ids=["good", "without its argument", "a scalar", "absent"],
)
def test_a_trainer_process_trains_with_it_or_says_why_not(
    tmp_path: Path, hook: HookConfig, code: ExitCode, told: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_losses.py").write_text(OWN)
    record(tmp_path / "batches", 2)
    loss = LossConfig(type="custom", hook=hook)
    config = tiny_config(tiny_model(tmp_path / "model"), loss=loss, python_path=[str(tmp_path / "code")])
    config.dump(tmp_path / "trainer.json")
    arguments = ["--config", "trainer.json", "--device", "cpu", "--batches", "batches", "--out", "out"]
    output = tmp_path / "output.log"
    replay = Program("echorl_trainer.replay", arguments, environment=os.environ, output=output, folder=tmp_path)
    assert (replay.ended(280), told in output.read_text()) == (code, True), output.read_text()
    if code is ExitCode.OK:
        steps = [json.loads(line) for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps] == [1, 2]
        assert all(step["metrics"]["custom/log_ratio"] is not None for step in steps)
