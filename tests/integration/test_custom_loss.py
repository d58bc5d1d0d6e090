"""A user's own loss in a trainer process, from a folder of the user's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echorl_core.config import HookConfig, LossConfig
from echorl_core.names import ExitCode
from echorl_testing.batches import record
from echorl_testing.tiny_learner import tiny_config, tiny_model

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
    command = [sys.executable, "-P", "-m", "echorl_trainer.replay", "--config", "trainer.json", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--batches", "batches", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr
    if code is ExitCode.OK:
        steps = [json.loads(line) for line in (tmp_path / "out" / "steps.jsonl").read_text().splitlines()]
        assert [step["step"] for step in steps] == [1, 2]
        assert all(step["metrics"]["custom/log_ratio"] is not None for step in steps)
