import pytest

from echorl_core.names import NEVER_RESTARTED, ExitCode, Role
from echorl_core.restarts import MAX_BACKOFF_S, Action, Death, Ledger, RestartPolicy, Rule, RuleAction, decide

POLICY = RestartPolicy(max_restarts=2, backoff_s=10.0, reset_after_steps=20)


def death(role: Role, code: int = 1, index: int = 0) -> Death:
    return Death(role, f"{role}-{index}", code)


@pytest.mark.parametrize(
    ("role", "action"),
    [
        (Role.INFERENCE, Action.RESTART_ALONE),
        (Role.ORCHESTRATOR, Action.RESTART_ALONE),
        (Role.TRAINER, Action.NEW_ATTEMPT),
    ],
)
@pytest.mark.parametrize("code", [1, 6, 137, -9])
def test_a_crash_restarts_what_depends_on_the_process(role: Role, action: Action, code: int) -> None:
    decision = decide([death(role, code)], ledger=Ledger(), policy=POLICY)
    assert (decision.action, decision.role, decision.delay_s) == (action, role, 10.0)


@pytest.mark.parametrize("code", sorted(NEVER_RESTARTED))
@pytest.mark.parametrize("role", list(Role))
def test_some_codes_end_the_run_with_that_code(role: Role, code: ExitCode) -> None:
    decision = decide([death(role, code)], ledger=Ledger(), policy=POLICY)
    assert (decision.action, decision.exit_code) == (Action.FAIL, code)


def test_a_code_that_is_never_restarted_outweighs_crashes_beside_it() -> None:
    deaths = [death(Role.TRAINER, 1, 1), death(Role.TRAINER, ExitCode.NON_FINITE, 0)]
    decision = decide(deaths, ledger=Ledger(), policy=POLICY)
    assert (decision.action, decision.exit_code) == (Action.FAIL, ExitCode.NON_FINITE)
    assert decision.reason == "trainer-0 ended with code 3 (non finite)"


def test_last_words_are_the_reason() -> None:
    told = Death(Role.ORCHESTRATOR, "orchestrator-0", ExitCode.ENVIRONMENT, message="64 episodes failed in a row")
    decision = decide([told, death(Role.TRAINER)], ledger=Ledger(), policy=POLICY)
    assert (decision.action, decision.reason) == (Action.FAIL, "orchestrator-0: 64 episodes failed in a row")


def test_orchestrator_and_rank_together_are_a_new_attempt() -> None:
    deaths = [death(Role.ORCHESTRATOR), death(Role.TRAINER)]
    assert decide(deaths, ledger=Ledger(), policy=POLICY).action is Action.NEW_ATTEMPT


def test_the_orchestrator_alone_cannot_go_on_with_half_a_gang() -> None:
    decision = decide([death(Role.ORCHESTRATOR)], ledger=Ledger(), policy=POLICY, gang_is_whole=False)
    assert decision.action is Action.NEW_ATTEMPT


def test_back_off_doubles_up_to_a_bound_and_each_role_counts_for_itself() -> None:
    policy, ledger, delays = RestartPolicy(max_restarts=9, backoff_s=10.0), Ledger(), []
    for _ in range(7):
        delays.append(decide([death(Role.TRAINER)], ledger=ledger, policy=policy).delay_s)
        ledger = ledger.with_restart(Role.TRAINER, 0)
    assert delays == [10, 20, 40, 80, 160, MAX_BACKOFF_S, MAX_BACKOFF_S]
    assert decide([death(Role.INFERENCE)], ledger=ledger, policy=policy).delay_s == 10


def test_restarts_beyond_the_limit_fail_with_the_cause() -> None:
    ledger = Ledger().with_restart(Role.TRAINER, 0).with_restart(Role.TRAINER, 0)
    decision = decide([death(Role.TRAINER, -9)], ledger=ledger, policy=POLICY)
    assert (decision.action, decision.exit_code) == (Action.FAIL, 1)
    assert decision.reason.startswith("trainer-0 was ended by signal 9; 2 restarts of trainer are used up")
    zero = RestartPolicy(max_restarts=0)
    assert decide([death(Role.INFERENCE)], ledger=Ledger(), policy=zero).action is Action.FAIL


def test_restarts_are_forgotten_after_new_steps_only() -> None:
    ledger = Ledger().with_restart(Role.TRAINER, 24)
    assert ledger.after_progress(43, POLICY) == ledger
    assert ledger.after_progress(44, POLICY).used == {}


def test_a_run_that_always_dies_at_the_same_step_uses_up_its_restarts() -> None:
    ledger, highest = Ledger(), 0
    for _ in range(POLICY.max_restarts):
        for step in range(25):  # goes back to 0 each time, and comes to step 24
            highest = max(highest, step)
            ledger = ledger.after_progress(highest, POLICY)
        assert decide([death(Role.TRAINER)], ledger=ledger, policy=POLICY).action is Action.NEW_ATTEMPT
        ledger = ledger.with_restart(Role.TRAINER, highest)
    assert decide([death(Role.TRAINER)], ledger=ledger, policy=POLICY).action is Action.FAIL


def test_the_first_rule_that_matches_decides_what_a_code_means() -> None:
    def rule(codes: set[int], action: RuleAction, role: Role = Role.TRAINER) -> Rule:
        return Rule(role, frozenset(codes), action)

    rules = [rule({3}, RuleAction.RESTART), rule({3, 17, 137}, RuleAction.FAIL), rule({1}, RuleAction.IGNORE)]
    policy = RestartPolicy(max_restarts=0)

    def outcome(code: int, role: Role = Role.TRAINER, max_restarts: int = 5) -> tuple[Action, bool]:
        decision = decide([Death(role, "one", code)], ledger=Ledger(), policy=RestartPolicy(max_restarts), rules=rules)
        return decision.action, decision.counts

    assert outcome(3) == (Action.NEW_ATTEMPT, True)
    assert outcome(17) == (Action.FAIL, True)
    assert outcome(-9) == (Action.FAIL, True)
    assert outcome(17, Role.INFERENCE) == (Action.RESTART_ALONE, True)
    assert outcome(1, max_restarts=0) == (Action.NEW_ATTEMPT, False)
    killed = Death(Role.TRAINER, "one", 137, why="node lost")
    assert decide([killed], ledger=Ledger(), policy=policy, rules=rules).reason.startswith("one was ended: node lost;")


def test_a_notice_counts_against_nothing_and_explains_crashes_of_peers_alone() -> None:
    def told(role: Role = Role.TRAINER, code: int = ExitCode.NOTICE) -> Death:
        return Death(role, "one", code, notice=True)

    spent = Ledger(dict.fromkeys(Role, 9))
    for deaths, action in (
        ([told(), death(Role.TRAINER)], Action.NEW_ATTEMPT),
        ([told(code=1), told()], Action.NEW_ATTEMPT),
        ([told(), told(Role.ORCHESTRATOR)], Action.NEW_ATTEMPT),
        ([told(Role.ORCHESTRATOR)], Action.RESTART_ALONE),
    ):
        decision = decide(deaths, ledger=spent, policy=POLICY)
        assert (decision.action, decision.notice, decision.counts, decision.delay_s) == (action, True, False, 10.0)
    for other in (death(Role.TRAINER, -9), Death(Role.TRAINER, "one", 1, why="no step for 600 s")):
        assert decide([told(), other], ledger=spent, policy=POLICY).action is Action.FAIL
    assert decide([told(), death(Role.TRAINER, 3)], ledger=Ledger(), policy=POLICY).exit_code == ExitCode.NON_FINITE
    rules = [Rule(Role.TRAINER, frozenset({9}), RuleAction.FAIL)]
    assert decide([told()], ledger=Ledger(), policy=POLICY, rules=rules).notice


def test_a_gang_whose_step_is_in_memory_starts_again_in_its_attempt_at_once_and_then_with_back_off() -> None:
    ledger, delays = Ledger(), []
    for _ in range(POLICY.max_restarts):
        decision = decide(
            [death(Role.TRAINER, -9), death(Role.TRAINER, 1, 1)], ledger=ledger, policy=POLICY, is_held=True
        )
        assert (decision.action, decision.counts) == (Action.RESTART_GANG, True)
        delays.append(decision.delay_s)
        ledger = ledger.with_restart(Role.TRAINER, 1)
    assert delays == [0.0, 10.0]
    last = decide([death(Role.TRAINER)], ledger=ledger, policy=POLICY, is_held=True)
    assert last.action is Action.FAIL
    assert "2 restarts of trainer are used up" in last.reason


@pytest.mark.parametrize(
    "deaths",
    [
        [death(Role.TRAINER), death(Role.ORCHESTRATOR)],
        [Death(Role.TRAINER, "trainer-0", -9, why="unhealthy for 60 s")],
        [Death(Role.TRAINER, "trainer-0", ExitCode.NOTICE, notice=True)],
    ],
    ids=["the orchestrator ended too", "ended as hung", "given notice"],
)
def test_what_memory_cannot_mend_is_a_new_attempt(deaths: list[Death]) -> None:
    assert decide(deaths, ledger=Ledger(), policy=POLICY, is_held=True).action is Action.NEW_ATTEMPT
