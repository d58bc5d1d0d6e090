"""Where time goes: by hand for what each event does, and by chance that nothing is lost or counted twice."""

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.wire.goodput import INFERENCE, THROWN_AWAY, TRAINER, TimeState, useful_ratio
from echorl_orchestrator.accounting.ledger import LONGEST_GAP_S, Ledger, Request, Saved, trainer_interval

S = TimeState
STEP = {"wait_batch": 2.0, "publish": 1.0, "checkpoint": 1.0, "forward_backward": 5.0, "optimizer": 1.0, "step": 10.0}


def ledger(now: float = 0.0, *, ranks: int = 1, gpus: int = 1) -> Ledger:
    return Ledger(None, now=now, attempt=1, ranks=ranks, gpus_per_engine=gpus)


def role(account: Ledger, name: str, now: float) -> dict[TimeState, float]:
    return {state: seconds for state, seconds in account.seconds(now)[name].items() if seconds}


def test_the_time_up_to_a_report_is_divided_by_what_the_step_says() -> None:
    assert trainer_interval(30.0, STEP, training=S.USEFUL, rest=S.STARTING) == {
        S.WAITING: 2.0,
        S.PUBLISHING: 1.0,
        S.SAVING: 1.0,
        S.USEFUL: 6.0,
        S.STARTING: 20.0,
    }


def test_parts_that_are_longer_than_the_interval_are_shortened_alike() -> None:
    divided = trainer_interval(5.0, STEP, training=S.REDONE, rest=S.WAITING)
    assert divided == {S.WAITING: 1.0, S.PUBLISHING: 0.5, S.SAVING: 0.5, S.REDONE: 3.0}


def test_what_a_journal_keeps_over_a_restart_is_lost_only_once_nobody_is_given_it() -> None:
    first = ledger()
    first.engine(0.0, "e", None)
    request = first.asked(0.0, "e", "old name")
    first.answered(10.0, request, lost=False)
    first.sampled("old name", 40)
    saved = first.saved(10.0)
    second = Ledger(saved, now=10.0, attempt=1, ranks=1, gpus_per_engine=1, kept_tokens=30)
    assert second.tokens == {S.LOST: 10}
    assert role(second, INFERENCE, 10.0) == {S.LOST: 2.5, S.UNDECIDED: 7.5}
    second.kept("new name", 12)
    second.not_kept(6)
    assert second.tokens == {S.LOST: 16}
    assert role(second, INFERENCE, 10.0) == {S.LOST: 4.0, S.UNDECIDED: 6.0}
    second.sealed(1, {"new name"})
    second.step(10.0, 1, {})
    assert second.tokens == {S.LOST: 16, S.USEFUL: 12}
    assert role(second, INFERENCE, 10.0) == {S.LOST: 4.0, S.USEFUL: 3.0, S.UNDECIDED: 3.0}
    third = Ledger(second.saved(10.0), now=10.0, attempt=2, ranks=1, gpus_per_engine=1)
    assert third.tokens == {S.LOST: 28, S.USEFUL: 12}
    second.close(10.0)
    assert second.tokens == {S.LOST: 28, S.USEFUL: 12}


def test_tokens_of_open_turns_that_a_journal_keeps_were_not_counted_before() -> None:
    first = ledger()
    first.engine(0.0, "e", None)
    first.asked(0.0, "e", "open")
    second = Ledger(first.saved(8.0), now=8.0, attempt=1, ranks=1, gpus_per_engine=1, kept_tokens=64)
    assert second.tokens[S.LOST] == 0
    second.kept("again", 64)
    second.decided("again", S.STALE)
    assert role(second, INFERENCE, 8.0) == {S.STALE: 8.0}
    assert second.tokens[S.STALE] == 64


def test_requests_share_their_engine_and_their_time_is_what_becomes_of_the_episode() -> None:
    account = ledger(gpus=2)
    account.engine(0.0, "e", S.STARTING)
    account.engine(1.0, "e", None)
    first = account.asked(3.0, "e", "a")
    second = account.asked(5.0, "e", "b")
    account.answered(9.0, first, lost=False)  # 2 s alone, 4 s by half: 4 s of 2 GPUs
    account.sampled("a", 7)
    account.answered(10.0, second, lost=False)  # 4 s by half, 1 s alone: 3 s of 2 GPUs
    account.sampled("b", 5)
    assert role(account, INFERENCE, 10.0) == {S.STARTING: 2.0, S.WAITING: 4.0, S.UNDECIDED: 14.0}
    account.decided("b", S.STALE)
    account.sealed(1, {"a"})
    assert role(account, INFERENCE, 10.0)[S.UNDECIDED] == 8.0
    account.step(10.0, 1, {})
    assert role(account, INFERENCE, 10.0) == {S.STARTING: 2.0, S.WAITING: 4.0, S.USEFUL: 8.0, S.STALE: 6.0}
    assert account.tokens == {S.STALE: 5, S.USEFUL: 7}


def test_an_engine_that_is_lost_wastes_what_it_was_asked_and_its_return_is_a_restart() -> None:
    account = ledger()
    account.engine(0.0, "e", None)
    request = account.asked(0.0, "e", "a")
    account.engine(3.0, "e", S.RESTARTING)
    account.answered(4.0, request, lost=True)
    account.engine(5.0, "e", S.STARTING)
    account.engine(9.0, "e", S.PUBLISHING)
    assert role(account, INFERENCE, 10.0) == {S.ENGINE_LOST: 3.0, S.RESTARTING: 6.0, S.PUBLISHING: 1.0}


def test_steps_that_a_lost_attempt_had_trained_are_redone_and_count_as_that() -> None:
    first = ledger(ranks=2)
    first.engine(0.0, "e", None)
    first.step(12.0, 1, STEP)
    first.step(22.0, 2, STEP)
    second = Ledger(first.saved(25.0), now=30.0, attempt=2, ranks=2, gpus_per_engine=1)
    # 8 s of both ranks and 5 s of the engine passed until the second attempt's orchestrator began.
    assert role(second, TRAINER, 30.0)[S.RESTARTING] == 16.0
    assert role(second, INFERENCE, 30.0) == {S.WAITING: 25.0, S.RESTARTING: 5.0}
    second.step(44.0, 2, STEP)
    second.step(54.0, 3, STEP)
    assert role(second, TRAINER, 54.0) == {
        S.STARTING: 4.0,
        S.RESTARTING: 24.0,
        S.WAITING: 16.0,
        S.PUBLISHING: 8.0,
        S.SAVING: 8.0,
        S.USEFUL: 36.0,
        S.REDONE: 12.0,
    }
    assert sum(role(second, TRAINER, 54.0).values()) == 2 * 54.0


def test_ranks_that_start_again_in_place_restart_and_redo_what_their_memory_did_not_hold() -> None:
    account = ledger(ranks=2)
    account.step(12.0, 1, STEP)
    account.step(22.0, 2, STEP)
    for _ in range(2):
        account.restarted()
    # 4 s of the step under way, 3 s until the ranks are back, 10 s each of a step made again and of a new one.
    account.step(39.0, 2, STEP)
    account.step(49.0, 3, STEP)
    assert role(account, TRAINER, 49.0) == {
        S.STARTING: 4.0,
        S.RESTARTING: 14.0,
        S.WAITING: 16.0,
        S.PUBLISHING: 8.0,
        S.SAVING: 8.0,
        S.USEFUL: 36.0,
        S.REDONE: 12.0,
    }


def test_an_orchestrator_that_is_restarted_alone_loses_what_was_not_sealed_and_ranks_go_on() -> None:
    first = ledger()
    first.engine(0.0, "e", None)
    for episode in ("sealed", "ready"):
        first.answered(2.0, first.asked(0.0, "e", episode), lost=False)
        first.sampled(episode, 3)
    first.sealed(1, {"sealed"})
    second = Ledger(first.saved(2.0), now=6.0, attempt=1, ranks=1, gpus_per_engine=1)
    second.step(10.0, 1, STEP)
    assert second.tokens == {S.LOST: 3, S.USEFUL: 3}
    assert role(second, TRAINER, 10.0) == {S.WAITING: 2.0, S.PUBLISHING: 1.0, S.SAVING: 1.0, S.USEFUL: 6.0}
    assert role(second, INFERENCE, 10.0) == {S.USEFUL: 2.0, S.RESTARTING: 4.0}


@pytest.mark.parametrize("closed", [True, False])
def test_a_run_that_was_put_away_holds_nothing_meanwhile(closed: bool) -> None:
    first = ledger()
    first.engine(0.0, "e", None)
    first.step(10.0, 1, STEP)
    if closed:
        first.close(10.0)
    later = 20.0 if closed else 11.0 + LONGEST_GAP_S
    second = Ledger(first.saved(10.0), now=later, attempt=2, ranks=1, gpus_per_engine=1)
    told = second.seconds(later)
    assert sum(sum(states.values()) for states in told.values()) == 20.0


def test_the_ratio_leaves_out_what_is_open() -> None:
    assert useful_ratio({TRAINER: {S.USEFUL: 3.0, S.UNDECIDED: 90.0}, INFERENCE: {S.STALE: 9.0}}) == 0.25
    assert useful_ratio({TRAINER: {S.UNDECIDED: 1.0}}) is None


class Pods:
    """An account, and what it must add up to: every pod's time."""

    def __init__(self, ranks: int, gpus: int) -> None:
        self.ranks, self.gpus, self.now, self.attempt, self.newest = ranks, gpus, 0.0, 1, 0
        self.account = ledger(ranks=ranks, gpus=gpus)
        self.alive: set[str] = set()
        self.requests: list[Request] = []
        self.trainer_s = self.engines_s = 0.0

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.trainer_s += self.ranks * seconds
        self.engines_s += self.gpus * len(self.alive) * seconds

    def engine(self, number: int, other: int) -> None:
        self.alive.add(f"e{number}")
        doing = [None, None, S.STARTING, S.PUBLISHING, S.RESTARTING, None][other]
        self.account.engine(self.now, f"e{number}", doing)

    def gone(self, number: int, _: int) -> None:
        self.alive.discard(f"e{number}")
        self.account.engine_gone(self.now, f"e{number}")

    def ask(self, number: int, other: int) -> None:
        self.requests.append(self.account.asked(self.now, f"e{number}", f"episode{other}"))

    def answer(self, number: int, other: int) -> None:
        if self.requests:
            request = self.requests.pop(other % len(self.requests))
            self.account.answered(self.now, request, lost=number == 0)
            self.account.sampled(request.episode, number)

    def decide(self, number: int, other: int) -> None:
        self.account.decided(f"episode{other}", THROWN_AWAY[number])

    def seal(self, number: int, other: int) -> None:
        self.account.sealed(self.newest + 1 + number, {f"episode{other}"})

    def step(self, number: int, other: int) -> None:
        self.newest += 1
        self.account.step(self.now, self.newest, {"wait_batch": number, "publish": 0.5, "step": number * other})

    def in_place(self, number: int, _: int) -> None:
        self.account.restarted()
        self.newest = max(0, self.newest - number)

    def again(self, _: int, other: int) -> None:
        """The orchestrator alone is killed; its successor begins ``other`` seconds later."""
        saved = self.account.saved(self.now)
        self.passes(other)
        self._goes_on(saved)

    def next_attempt(self, number: int, other: int) -> None:
        self.attempt, self.newest = self.attempt + 1, max(0, self.newest - number)
        self.again(number, other)

    def put_away(self, _: int, other: int) -> None:
        """The run ends on request, and goes on later: it has no pods meanwhile."""
        self.account.close(self.now)
        saved = self.account.saved(self.now)
        self.now += other
        self.attempt += 1
        self._goes_on(saved)

    def _goes_on(self, saved: Saved) -> None:
        again = msgspec.json.decode(msgspec.json.encode(saved), type=Saved)
        self.account = Ledger(again, now=self.now, attempt=self.attempt, ranks=self.ranks, gpus_per_engine=self.gpus)
        self.alive, self.requests = set(), []


EVENTS = [Pods.engine, Pods.gone, Pods.ask, Pods.answer, Pods.decide, Pods.seal, Pods.step]
EVENTS += [Pods.in_place, Pods.again, Pods.next_attempt, Pods.put_away]


@given(
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3), st.integers(0, 5), st.floats(0, 50))),
    ranks=st.integers(1, 4),
    gpus=st.integers(1, 4),
)
def test_states_partition_the_time_of_all_pods(
    events: list[tuple[Callable[[Pods, int, int], None], int, int, float]], ranks: int, gpus: int
) -> None:
    pods = Pods(ranks, gpus)
    pods.engine(0, 0)
    for episode in (0, 1):
        pods.ask(0, episode)
    for event, number, other, passed in events:
        pods.passes(passed)
        event(pods, number, other)
        told = pods.account.seconds(pods.now)
        assert min(seconds for states in told.values() for seconds in states.values()) >= -1e-6
        assert sum(told[TRAINER].values()) == pytest.approx(pods.trainer_s)
        assert sum(told[INFERENCE].values()) == pytest.approx(pods.engines_s)
