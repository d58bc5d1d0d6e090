"""Whose answer is told to whom, for how long, and what becomes of the files."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echorl_core.config import SamplingConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.engines.journal import journal as module
from echorl_orchestrator.engines.journal.journal import REPLAYS, TurnJournal
from echorl_orchestrator.engines.journal.parts import TurnKey
from echorl_orchestrator.engines.open_turn import OpenStream
from echorl_testing.engines.fake_engine import RUN_UID, FakeEngine, logprob, policy

IDENTITY = RunIdentity("run", RUN_UID, 1)
KEY = TurnKey("digits", 3, 0)
REQUEST = {
    "episode": "e1",
    "prompt_ids": [1, 2],
    "sampling": SamplingConfig(),
    "max_tokens": 200,
    "stop_ids": [0],
}


class Attempt:
    """One attempt's journals, process after process."""

    def __init__(self, root: Path, identity: RunIdentity = IDENTITY) -> None:
        self.directory, self.identity = RunDirectory(root), identity
        self.folder = self.directory.attempt(identity.attempt) / "turns"
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.settled: set[int] = set()
        self.dropped: list[int] = []

    def process(self) -> TurnJournal:
        journal = TurnJournal.opened(self.directory, self.identity, lambda _, ordinal: ordinal in self.settled)
        journal.on_dropped = self.dropped.append
        return journal

    async def is_settled(self, journal: TurnJournal, *ordinals: int) -> None:
        self.settled.update(ordinals)
        await journal.sealed(lambda _, ordinal: ordinal in self.settled)

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def ask(journal: TurnJournal, prompt: list[int], episode: str = "a1-g1-e0", settings: bytes = b"s") -> list[int] | None:
    """What a request is told; None: nothing, and an engine answers."""
    turn = journal.turn(episode, prompt, settings)
    assert turn is not None
    return [token for segment in turn.segments for token in segment.token_ids] or None


def sample(journal: TurnJournal, prompt: list[int], answer: list[int], episode: str = "a1-g1-e0", low: int = 4) -> None:
    """An engine answers a turn that nothing is told of."""
    turn = journal.turn(episode, prompt, b"s")
    assert turn is not None
    assert not turn.segments
    stream = OpenStream("e", "b", low, low, answer, [-1.0] * len(answer), certain=len(answer))
    turn.closed(stream, "stop")


async def test_each_answer_is_told_once_to_whose_it_was(attempt: Attempt) -> None:
    first = attempt.process()
    for place, answer in enumerate(([1, 2], [3])):
        first.begins(f"old-e{place}", KEY._replace(place=place), 0)
        sample(first, [5, 5], answer, f"old-e{place}")
    first.begins("debate", TurnKey("debate", 0, 0), 0)
    sample(first, [5, 5], [8], "debate/pro")
    sample(first, [5, 5], [9], "debate/con")
    await first.close()

    second = attempt.process()
    assert second.tokens == 5
    for place, answer in enumerate(([1, 2], [3])):
        second.begins(f"new-e{place}", KEY._replace(place=place), 0)
        assert ask(second, [5, 5], f"new-e{place}") == answer
        assert ask(second, [5, 5], f"new-e{place}") is None
    second.begins("debate again", TurnKey("debate", 0, 0), 0)
    assert ask(second, [5, 5], "debate again/con") == [9]
    assert ask(second, [5, 5], "debate again/pro") == [8]
    assert second.turn("an eval", [5, 5], b"s") is None
    assert attempt.dropped == []


async def test_equal_prompts_of_an_episode_are_answered_in_the_order_of_asking(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    sample(first, [5], [2], "e")
    await first.close()
    second = attempt.process()
    second.begins("e", KEY, 0)
    assert [ask(second, [5], "e") for _ in range(3)] == [[1], [2], None]


@pytest.mark.parametrize(
    ("prompt", "settings"), [([5, 6], b"s"), ([5], b"other")], ids=["other ids", "another temperature"]
)
async def test_the_first_request_that_differs_drops_the_rest(
    attempt: Attempt, prompt: list[int], settings: bytes
) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    sample(first, [5, 1], [2, 2], "e")
    await first.close()
    second = attempt.process()
    second.begins("e", KEY, 0)
    assert ask(second, prompt, "e", settings) is None
    assert attempt.dropped == [3]
    assert ask(second, [5], "e") is None
    await second.close()
    third = attempt.process()
    assert third.tokens == 0


async def test_a_try_is_not_told_what_the_one_before_was(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    first.tried("e")
    sample(first, [5], [2], "e")
    await first.close()
    second = attempt.process()
    second.begins("e", KEY, 0)
    assert ask(second, [5], "e") == [2]
    second.tried("e")
    assert ask(second, [5], "e") is None
    await second.close()
    assert attempt.process().tokens == 0


async def test_a_try_that_was_the_last_is_told(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    first.tried("e")
    first.ends("e")
    await first.close()
    second = attempt.process()
    second.begins("e", KEY, 0)
    assert ask(second, [5], "e") == [1]


async def test_an_episode_with_a_token_that_is_too_old_begins_anew(attempt: Attempt) -> None:
    first = attempt.process()
    for place in range(2):
        first.begins(f"e{place}", KEY._replace(place=place), 0)
        sample(first, [5], [1], f"e{place}", low=4 + place)
        sample(first, [5, 1], [2], f"e{place}", low=6)
    await first.close()
    second = attempt.process()
    assert second.begins("e0", KEY, 5).version_low is None
    playing = second.begins("e1", KEY._replace(place=1), 5)
    assert playing.version_low == 5
    assert attempt.dropped == [2]
    assert ask(second, [5], "e1") == [1]
    assert ask(second, [9], "e1") is None
    assert playing.version_low == 5, "what was told stays as old as it is"


async def test_an_episode_that_ends_without_asking_counts_the_rest_as_dropped(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1, 1, 1], "e")
    await first.close()
    second = attempt.process()
    second.begins("e", KEY, 0)
    second.ends("e")
    assert attempt.dropped == [3]


async def test_files_go_when_no_task_of_theirs_is_played_again(attempt: Attempt) -> None:
    journal = attempt.process()
    for ordinal in (1, 2):
        journal.begins(f"g{ordinal}", KEY._replace(ordinal=ordinal), 0)
        sample(journal, [5], [ordinal], f"g{ordinal}")
    await journal.close()
    await attempt.is_settled(journal, 1)
    sample(journal, [5, 2], [4], "g2")
    await journal.close()
    assert attempt.files() == ["000001-000001.log", "000001-000002.log"]
    again = attempt.process()
    assert again.tokens == 2, "what is settled is not told"
    await attempt.is_settled(again, 2)
    assert attempt.files() == []


async def test_who_sealed_and_died_leaves_nothing_to_be_told(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    await first.close()
    attempt.settled.add(KEY.ordinal)
    assert attempt.process().tokens == 0
    assert attempt.files() == []


async def test_a_turn_is_told_to_so_many_processes_and_no_more(attempt: Attempt) -> None:
    first = attempt.process()
    first.begins("e", KEY, 0)
    sample(first, [5], [1], "e")
    await first.close()
    for _ in range(REPLAYS):
        again = attempt.process()
        again.begins("e", KEY, 0)
        assert ask(again, [5], "e") == [1]  # and that ends the process
    last = attempt.process()
    last.begins("e", KEY, 0)
    assert ask(last, [5], "e") is None


@pytest.mark.parametrize("other", [RunIdentity("run", "another uid", 1), RunIdentity("run", RUN_UID, 2)])
async def test_what_another_run_or_attempt_wrote_is_not_told(tmp_path: Path, other: RunIdentity) -> None:
    first = Attempt(tmp_path)
    journal = first.process()
    journal.begins("e", KEY, 0)
    sample(journal, [5], [1], "e")
    await journal.close()
    second = Attempt(tmp_path, other)
    assert second.process().tokens == 0
    assert first.files() == []


async def test_a_volume_that_takes_nothing_ends_the_journal_and_not_the_run(attempt: Attempt) -> None:
    journal = attempt.process()
    journal.begins("e", KEY, 0)
    sample(journal, [5], [1], "e")
    attempt.folder.touch()  # a file where the folder would be
    await journal.close()
    sample(journal, [5, 1], [2], "e")
    await journal.close()
    await attempt.is_settled(journal, KEY.ordinal)


async def test_a_journal_that_grows_too_large_ends_and_frees_the_volume(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGEST_BYTES", 500)
    journal = attempt.process()
    journal.begins("e", KEY, 0)
    sample(journal, [5], [1] * 40, "e")
    await journal.close()
    assert attempt.files() == ["000001-000001.log"]
    sample(journal, [6], [1] * 40, "e")
    await journal.close()
    assert attempt.files() == []
    sample(journal, [7], [1], "e")
    await journal.close()
    assert attempt.process().tokens == 0


async def test_an_open_turn_goes_on_at_another_pools_engine_with_both_versions(
    attempt: Attempt, running_pool: Callable[..., Any]
) -> None:
    async with FakeEngine() as engine:
        engine.tokens_per_answer = 100
        engine.breaks = [(90, "still")]
        first = attempt.process()
        async with running_pool(engine, journal=first) as harness:
            harness.pool.announce(policy(1))
            await harness.state(engine, "serving")
            first.begins("e1", KEY, 0)
            call = asyncio.create_task(harness.pool.generate(**REQUEST))
            await harness.eventually(lambda: bool(engine.counters["generation_tokens_total"] == 90))
            await harness.eventually(lambda: bool(first._backlog))
            await first.close()
            call.cancel()
        second = attempt.process()
        assert second.tokens == 65
        engine.reboot()
        engine.tokens_per_answer = 5
        async with running_pool(engine, journal=second) as harness:
            harness.pool.announce(policy(3))
            await harness.state(engine, "serving")
            second.begins("other name", KEY, 0)
            made = await harness.pool.generate(**{**REQUEST, "episode": "other name"})
        asked = engine.bodies("generate")[-1]
    assert made.token_ids == [*range(7, 72), *range(7, 12)]
    low, high = made.versions()
    assert low.tolist() == high.tolist() == [1] * 65 + [3] * 5
    assert made.logprobs == pytest.approx([logprob(1 if n < 65 else 3, 2 + n) for n in range(70)], abs=1e-7)
    assert asked["token_ids"] == [1, 2, *range(7, 72)]
    assert asked["sampling_params"]["max_tokens"] == 135
