from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import CheckpointConfig, EnvironmentConfig, SamplingConfig
from echorl_core.live import LiveCheckpoints, LiveSampling, LiveSettings, applied, problems, settings_of
from echorl_testing.manifests.role_config import orchestrator_config

CONFIG = orchestrator_config(Path("/run"))


def settings(**fields: Any) -> LiveSettings:
    return LiveSettings(**{"generation": 1, **fields})


def test_each_setting_lands_in_its_place() -> None:
    changed = applied(
        CONFIG,
        settings(
            max_steps=30,
            checkpoint=LiveCheckpoints(interval=3, keep_last=2, keep_every=6),
            eval_intervals={"held-out": 7},
            sampling={
                "digits": LiveSampling(temperature=0.7, max_completion_tokens=9),
                "held-out": LiveSampling(temperature=0.0, max_completion_tokens=8, top_p=0.9),
            },
        ),
    )
    assert changed.max_steps == 30
    assert changed.checkpoint == CheckpointConfig(interval=3, keep_last=2, keep_every=6)
    assert changed.evals[0].interval == 7
    assert changed.train[0].sampling == SamplingConfig(temperature=0.7, max_completion_tokens=9)
    assert changed.evals[0].environment.sampling == SamplingConfig(temperature=0.0, max_completion_tokens=8, top_p=0.9)
    assert CONFIG.max_steps == 10, "the config itself stays as it was"


def test_what_is_left_out_stays() -> None:
    assert applied(CONFIG, settings()) == CONFIG


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.floats(0.1, 2.0))
def test_a_run_becomes_what_a_later_config_says(steps: int, interval: int, every: int, temperature: float) -> None:
    """What the operator compares: a change that this does not bring about is no live one."""
    environment = EnvironmentConfig(
        name="digits", type="builtin:digits", sampling=SamplingConfig(temperature=temperature, max_completion_tokens=5)
    )
    later = orchestrator_config(
        Path("/run"),
        max_steps=steps,
        checkpoint=CheckpointConfig(interval=interval, keep_last=every),
        train=[environment],
        evals=[CONFIG.evals[0].model_copy(update={"interval": every})],
    )
    sent = msgspec.json.decode(msgspec.json.encode(settings_of(later, 4)), type=LiveSettings)
    assert problems(CONFIG, sent) == []
    assert applied(CONFIG, sent) == later
    assert applied(CONFIG, settings_of(orchestrator_config(Path("/run"), seed=1), 4)) == CONFIG


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"eval_intervals": {"digits": 2}}, "eval_intervals.digits: no such eval environment, accepted are held-out"),
        (
            {"sampling": {"x": LiveSampling(temperature=1, max_completion_tokens=1)}},
            "sampling.x: no such environment, accepted are digits, held-out",
        ),
        (
            {"sampling": {"digits": LiveSampling(temperature=0, max_completion_tokens=1)}},
            "sampling.digits.temperature: found 0, accepted is a number above 0 in a train environment",
        ),
        (
            {"sampling": {"digits": LiveSampling(temperature=1, max_completion_tokens=1, top_p=0.5)}},
            "sampling.digits.top_p: found 0.5, accepted is 1 in a train environment",
        ),
        (
            {"checkpoint": LiveCheckpoints(interval=4, keep_last=1, keep_every=6)},
            "checkpoint.keep_every: found 6, accepted is a multiple of interval (4)",
        ),
    ],
)
def test_what_does_not_fit_the_run_is_named(fields: dict[str, Any], problem: str) -> None:
    assert problems(CONFIG, settings(**fields)) == [problem]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"generation": 0}',
        b'{"generation": 1, "max_steps": -1}',
        b'{"generation": 1, "maxSteps": 3}',
        b'{"generation": 1, "checkpoint": {"interval": 0, "keep_last": 1}}',
        b'{"generation": 1, "eval_intervals": {"held-out": 0}}',
        b'{"generation": 1, "sampling": {"digits": {"temperature": -1, "max_completion_tokens": 1}}}',
    ],
)
def test_values_out_of_range_are_not_decoded(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=LiveSettings)
