"""Why an engine does not serve is in the run's message, and so in ``echorl why``."""

from dataclasses import replace

import pytest

from echorl_cli.cluster.sentence import sentence
from echorl_core.names import Phase
from echorl_operator.diagnosis.engine_errors import MOST_CHARACTERS, engine_errors
from echorl_operator.names import PodRole
from echorl_operator.observed.roles import EngineState, RoleState
from echorl_testing.operator.imagined_cluster import ImaginedCluster
from echorl_testing.operator.observed_worlds import NOW, observed, pod

WAITING = "an engine to hold version 3 (1 found)"
MISMATCH = "version 3: probe differs by 0.8, accepted is 0.02"
QUARANTINED = EngineState("10.1.0.0:8000", "quarantined", None, MISMATCH)


def state(*engines: EngineState) -> RoleState:
    return RoleState(
        attempt=1,
        phase=Phase.RUNNING,
        step=3,
        waiting_for=WAITING,
        reward=None,
        trained=3,
        served_min=None,
        served_max=None,
        staleness_max=None,
        checkpoint=None,
        abandoned="",
        engines=engines,
        failure_code=None,
        failure_message="",
        last_step_at=NOW,
        seen_at=NOW,
    )


def said(*engines: EngineState) -> str:
    loading = pod("one-inference-a", PodRole.INFERENCE, ip="10.1.0.8", ready=False)
    up = pod("one-inference-b", PodRole.INFERENCE, ip="10.1.0.9")
    return engine_errors(observed(loading, up), state(*engines))


def test_a_run_whose_engine_is_quarantined_says_why() -> None:
    cluster = ImaginedCluster().begin()
    (engine,) = (name for name, one in cluster.pods.items() if one.role is PodRole.INFERENCE)
    cluster.pods[engine] = replace(cluster.pods[engine], ip="10.1.0.0")
    cluster.say(waiting_for=WAITING, engines=(QUARANTINED,))
    message = cluster.settle().status["message"]
    assert message == f"waiting for {WAITING}; engine {engine} (10.1.0.0:8000) is quarantined: {MISMATCH}"
    assert sentence(cluster.world()).endswith(message)
    cluster.say(engines=(replace(QUARANTINED, state="serving", error=""),))
    assert cluster.settle().status["message"] == f"waiting for {WAITING}"


def test_the_error_that_says_most_comes_first() -> None:
    lost = EngineState("10.1.0.1:8000", "lost", None, "its health check fails")
    serving = EngineState("10.1.0.2:8000", "serving", 2, "stage of version 3 failed: no room")
    assert said(lost, serving, QUARANTINED).startswith("engine 10.1.0.0:8000 is quarantined: version 3: probe")
    assert said(lost, serving, QUARANTINED).endswith("(and 2 more have errors)")
    assert said(serving, lost).startswith("engine 10.1.0.2:8000 is serving: stage of version 3 failed: no room")
    assert said(replace(serving, error="")) == ""


@pytest.mark.parametrize("before", ["discovered", "starting"])
def test_an_engine_that_loads_has_no_error_yet(before: str) -> None:
    refused = "/echorl/identity at 10.1.0.8:8000: connection refused"
    assert said(EngineState("10.1.0.8:8000", before, None, refused)) == ""
    assert said(EngineState("10.1.0.7:8000", before, None, refused)) == ""
    cut_off = EngineState("10.1.0.9:8000", before, None, "/echorl/identity: no answer in 5 s")
    assert said(cut_off) == f"engine one-inference-b (10.1.0.9:8000) is {before}: /echorl/identity: no answer in 5 s"


def test_an_error_is_one_line_of_bounded_length() -> None:
    long = said(replace(QUARANTINED, error="CUDA error:\n  out of memory\n" + "x" * 10_000))
    assert "is quarantined: CUDA error: out of memory xxx" in long
    assert len(long) < MOST_CHARACTERS + 100


@pytest.mark.parametrize(
    "error",
    [
        "cannot fetch http://user:hidden@10.0.0.1:8200/x",
        "cannot fetch http://10.0.0.1:8200/x?token=hidden&y=1",
        "sent Authorization: Bearer hidden; answered 401",
    ],
)
def test_what_one_logs_in_with_is_left_out(error: str) -> None:
    told = said(replace(QUARANTINED, error=error))
    assert "hidden" not in told
    assert error.split(maxsplit=1)[0] in told


def test_an_engine_with_an_ipv6_address_has_its_pods_name() -> None:
    up = pod("one-inference-b", PodRole.INFERENCE, ip="fd00::9")
    lost = EngineState("[fd00::9]:8000", "lost", None, "no answer")
    assert engine_errors(observed(up), state(lost)) == "engine one-inference-b ([fd00::9]:8000) is lost: no answer"
