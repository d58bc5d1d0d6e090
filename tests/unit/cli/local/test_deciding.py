import pytest

from echorl_cli.local.deciding import Standing, decisions
from echorl_core.names import ExitCode, Role
from echorl_core.restarts import Action, Death, Ledger, RestartPolicy

POLICY = RestartPolicy(max_restarts=2, backoff_s=10.0)
RANK, ORCHESTRATOR = Death(Role.TRAINER, "trainer-1", 1), Death(Role.ORCHESTRATOR, "orchestrator-0", 1)


def standing(*, whole: bool = False, held: bool = True, seen_to: bool = False, used: int = 0) -> Standing:
    ledger = Ledger({Role.ORCHESTRATOR: used})
    return Standing(ledger, gang_is_whole=whole, is_held=held, orchestrator_is_seen_to=seen_to)


@pytest.mark.parametrize(
    ("deaths", "held", "whole", "seen_to", "actions"),
    [
        ([RANK], True, False, True, [Action.RESTART_GANG]),
        ([RANK], False, False, True, [Action.NEW_ATTEMPT]),
        ([ORCHESTRATOR], True, True, False, [Action.RESTART_ALONE]),
        ([ORCHESTRATOR], True, False, False, [Action.NEW_ATTEMPT]),
        ([RANK, ORCHESTRATOR], True, False, False, [Action.RESTART_GANG, Action.RESTART_ALONE]),
        ([ORCHESTRATOR, RANK], True, False, True, [Action.RESTART_GANG]),
        ([RANK, ORCHESTRATOR], False, False, False, [Action.NEW_ATTEMPT]),
    ],
)
def test_ranks_and_the_orchestrator_go_on_by_themselves_where_memory_holds_a_step(
    deaths: list[Death], held: bool, whole: bool, seen_to: bool, actions: list[Action]
) -> None:
    found = decisions(deaths, standing(whole=whole, held=held, seen_to=seen_to), POLICY, ())
    assert [decision.action for decision in found] == actions


def test_an_orchestrator_that_ends_the_run_leaves_no_rank_to_restart() -> None:
    ending = Death(Role.ORCHESTRATOR, "orchestrator-0", ExitCode.NON_FINITE)
    (decision,) = decisions([RANK, ending], standing(seen_to=True), POLICY, ())
    assert (decision.action, decision.exit_code) == (Action.FAIL, ExitCode.NON_FINITE)


def test_an_orchestrator_without_restarts_left_ends_the_run_though_ranks_have_some() -> None:
    (decision,) = decisions([RANK, ORCHESTRATOR], standing(used=2), POLICY, ())
    assert decision.action is Action.FAIL
