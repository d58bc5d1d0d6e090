"""Shares of episodes that were lost to infrastructure, by numbers worked out by hand."""

from dataclasses import replace

import pytest

from echorl_core.wire.run_state import InfrastructureLoss
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.rollout.infrastructure_losses import WINDOW, InfrastructureLosses
from echorl_testing.orchestrator.scripted_player import outcome


def note(losses: InfrastructureLosses, kind: ErrorKind | None, times: int = 1, environment: str = "swe") -> None:
    for number in range(times):
        ended = replace(outcome(), environment=environment, error=None if kind is None else f"number {number}")
        losses.note(ended, kind)


def test_nothing_is_told_before_eight_episodes_of_any_environment_have_ended() -> None:
    losses = InfrastructureLosses({"swe": 0.1, "math": 0.1})
    note(losses, ErrorKind.PROVIDER, 7)
    assert losses.beyond() is None
    note(losses, ErrorKind.CANCELLED, 5)
    assert losses.beyond() is None
    note(losses, None)
    assert losses.beyond() == [
        InfrastructureLoss(environment="swe", share=0.88, limit=0.1, error="provider: number 6"),  # 7 of 8
    ]


@pytest.mark.parametrize("kind", [ErrorKind.PROVIDER, ErrorKind.SANDBOX, ErrorKind.INFRASTRUCTURE])
def test_a_share_is_told_once_it_is_above_its_bound_and_until_it_is_not(kind: ErrorKind) -> None:
    losses = InfrastructureLosses({"swe": 0.25})
    note(losses, None, 6)
    note(losses, kind, 2)
    assert losses.beyond() == []  # 2 of 8 is the bound
    note(losses, kind)
    assert [loss.share for loss in losses.beyond() or []] == [0.33]
    note(losses, None, WINDOW)
    assert losses.beyond() == []


@pytest.mark.parametrize("kind", [ErrorKind.ENV, ErrorKind.HARNESS, ErrorKind.AGENT, ErrorKind.TIMEOUT])
def test_failures_of_agents_tasks_and_environments_are_none(kind: ErrorKind) -> None:
    losses = InfrastructureLosses({"swe": 0.0})
    note(losses, kind, 64)
    assert losses.beyond() == []


def test_an_environment_that_is_not_trained_in_is_not_counted() -> None:
    losses = InfrastructureLosses({"swe": 0.0})
    note(losses, ErrorKind.PROVIDER, 64, environment="held-out")
    assert losses.beyond() is None
