import math

from echorl_orchestrator.monitors.rows import eval_values, step_values


def test_numbers_of_a_step_and_of_its_engines() -> None:
    row = {"time": "now", "step": 7, "reward/all/mean": 0.5, "loss/ce": None, "gap/max_abs": math.inf, "flag": True}
    found = step_values(row, {"running": 3, "kv_usage_mean": None})
    assert (found.axis, found.at, found.values) == ("step", 7, {"reward/all/mean": 0.5, "engines/running": 3})


def test_numbers_of_an_eval_carry_its_environment() -> None:
    row = {"step": 20, "environment": "held", "reward": 0.25, "pass@4": 1.0, "examples": [{"reward": 1.0}]}
    found = eval_values(row)
    assert (found.axis, found.at) == ("eval/step", 20)
    assert found.values == {"eval/held/reward": 0.25, "eval/held/pass@4": 1.0}
