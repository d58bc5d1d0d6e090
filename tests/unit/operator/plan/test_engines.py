"""Engines that the kubelet starts again are counted once each, however often and wherever one looks."""

from typing import Any

from echorl_operator.names import PodRole
from echorl_operator.observed.records import PodRecord
from echorl_operator.plan.planning import plan
from echorl_operator.settings import Settings
from echorl_testing.operator.observed_worlds import container, observed, pod, run


def engine(name: str, restarts: int) -> PodRecord:
    return pod(name, PodRole.INFERENCE, containers=(container("engine", restarts=restarts),))


def after(status: dict[str, Any], *engines: PodRecord) -> dict[str, Any]:
    found = plan(observed(*engines, run=run(status)), Settings(operator_version="1"), "t").status
    return {key: found.get(key) for key in ("restarts", "restartsByRole", "attempt")} | {
        "control": found.get("control", {})
    }


def test_restarts_add_up_and_outlive_their_pods() -> None:
    begun: dict[str, Any] = {"attempt": 1, "phase": "Running", "restartsByRole": {"trainer": 1}}
    first = after(begun, engine("a", 2), engine("b", 0))
    assert first["restartsByRole"] == {"trainer": 1, "inference": 2}
    assert first["restarts"] == 3
    again = after({**begun, **first}, engine("a", 2), engine("b", 0))
    assert again["restartsByRole"] == first["restartsByRole"]
    one_more = after({**begun, **again}, engine("a", 2), engine("b", 1))
    assert one_more["restartsByRole"] == {"trainer": 1, "inference": 3}
    replaced = after({**begun, **one_more}, engine("b", 1), engine("c", 1))
    assert replaced["restartsByRole"] == {"trainer": 1, "inference": 4}
    assert replaced["control"]["engineRestarts"] == {"b": 1, "c": 1}


def test_engines_that_never_restarted_are_not_in_status() -> None:
    found = after({"attempt": 1, "phase": "Running"}, engine("a", 0))
    assert "engineRestarts" not in found["control"]
    assert found["restarts"] == 0
