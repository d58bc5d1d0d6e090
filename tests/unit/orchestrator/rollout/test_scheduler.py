"""Which episodes are started, when, and which are cancelled."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from echorl_core.config import EnvironmentConfig, OverridesConfig, SamplingConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.engines.journal.parts import TurnKey
from echorl_orchestrator.engines.open_turn import OpenStream
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.rollout.scheduler import capacity
from echorl_testing.orchestrator.scripted_player import ScriptedPlayer, batch_config, environment, eventually, outcome
from echorl_testing.orchestrator.scripted_scheduler import Rig


@pytest.mark.parametrize(
    ("version", "next_step", "staleness", "oversampling", "expected"),
    [
        (0, 1, 0, 1.0, 4),
        (0, 2, 0, 1.0, 0),
        (0, 1, 2, 1.0, 12),
        (0, 2, 2, 1.5, 12),
        (3, 4, 1, 1.1, 9),
        (-1, 1, 5, 1.0, 0),
        (9, 10, 5, 1.0, 4),
    ],
)
def test_capacity_by_hand(version: int, next_step: int, staleness: int, oversampling: float, expected: int) -> None:
    config = batch_config(max_staleness=staleness, oversampling=oversampling)
    assert capacity(config, version=version, next_step=next_step, max_steps=10, per_batch=4) == expected


async def test_on_policy_plays_one_batch_per_version_and_nothing_across_an_update() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    async with rig.running():
        for step in range(1, 4):
            batch = await rig.buffer.batch()
            await rig.idle()
            assert {one.staleness(step) for one in batch} == {0}
            assert len(rig.player.played) == 4 * step
            rig.update(step)
    assert rig.player.across == []


async def test_batches_ahead_are_filled_at_once_after_an_update() -> None:
    rig = Rig(batch_config(max_staleness=2), ScriptedPlayer())
    rig.player.gate.clear()
    async with rig.running():
        await eventually(lambda: len(rig.player.playing) == 12, "three batches are in flight")
        rig.player.gate.set()
        batches = [await rig.buffer.batch() for _ in range(3)]
        await rig.idle()
        assert len(rig.player.played) == 12
        assert [max(one.staleness(step) for one in batch) for step, batch in enumerate(batches, 1)] == [0, 1, 2]
        rig.player.gate.clear()
        rig.update(1)
        await eventually(lambda: len(rig.player.playing) == 4, "one more batch is in flight, all of it at once")


async def test_no_engine_means_no_episode() -> None:
    rig = Rig(batch_config(), ScriptedPlayer(version=-1))
    async with rig.running():
        await asyncio.sleep(0)
        assert rig.player.started == []
        rig.update(0)
        assert len(await rig.buffer.batch()) == 4


async def test_a_group_shares_task_and_seed() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    async with rig.running():
        await rig.buffer.batch()
    by_group: dict[str, set[tuple[int, int]]] = {}
    for group, index, seed in rig.player.started:
        by_group.setdefault(group, set()).add((index, seed))
    assert all(len(found) == 1 for found in by_group.values())
    assert len(set.union(*by_group.values())) == 2


async def test_concurrency_per_environment_is_bounded() -> None:
    slow, fast = environment("slow", max_concurrent=3), environment("fast", max_concurrent=5)
    rig = Rig(batch_config(max_staleness=9), ScriptedPlayer(), [slow, fast])
    async with rig.running():
        for _ in range(9):
            await rig.buffer.batch()
    assert rig.player.most["slow"] <= 3
    assert rig.player.most["fast"] <= 5
    assert rig.player.most.total() >= 4


async def test_an_environment_without_free_slots_is_waited_for() -> None:
    rig = Rig(batch_config(max_staleness=9), ScriptedPlayer(), [environment(max_concurrent=2)])
    rig.player.gate.clear()
    async with rig.running():
        await eventually(lambda: len(rig.player.playing) == 2, "the slots are full")
        rig.scheduler.wake()
        await asyncio.sleep(0)
        assert rig.scheduler.groups_started == 1
        rig.player.gate.set()
        await rig.buffer.batch()


async def test_tasks_in_batches_are_used_up_and_those_in_flight_come_back() -> None:
    rig = Rig(batch_config(max_staleness=1), ScriptedPlayer())
    async with rig.running():
        batch = await rig.buffer.batch()
        state = rig.deck.state().cursors["terminal"]
        used = {one.ticket.ordinal for one in batch}
        assert len(used) == 2
        assert set(state.returned) == set(range(state.next)) - used
        assert state.next >= 3


async def test_episodes_that_no_batch_can_use_are_cancelled() -> None:
    player = ScriptedPlayer()
    failed: list[str] = []
    rig = Rig(batch_config(oversampling=2.0), player, on_failed=lambda step, one: failed.append(one.outcome.episode))
    hold = asyncio.Event()
    play = player.play

    async def held(config: EnvironmentConfig, task: dict[str, object], **names: object) -> EpisodeOutcome:
        if names["group"] in {"a1-g000003", "a1-g000004"}:
            player.playing[str(names["episode"])] = (config.name, player.version)
            try:
                await hold.wait()
            finally:
                del player.playing[str(names["episode"])]
        return await play(config, task, **names)  # type: ignore[arg-type]

    player.play = held  # type: ignore[method-assign]
    async with rig.running():
        await rig.buffer.batch()
        assert rig.scheduler.in_flight == 4
        rig.scheduler.cancel_hopeless()
        await eventually(lambda: rig.scheduler.in_flight == 0, "nothing is in flight before the update")
        rig.update(1)
        assert player.across == []
        hold.set()
        await rig.buffer.batch()
    assert rig.counters.totals["failures/cancelled"] == 4
    assert failed == []  # what nobody needs any more has not failed
    assert rig.counters.totals["groups/dropped"] == 2


async def test_an_episode_is_as_old_as_what_a_journal_has_told_it(tmp_path: Path) -> None:
    identity, run = RunIdentity("run", "uid", 1), RunDirectory(tmp_path)
    run.attempt(1).mkdir(parents=True)
    before = TurnJournal.opened(run, identity, lambda *_: False)
    for ordinal, low in ((0, 2), (1, 3)):
        before.begins(f"e{ordinal}", TurnKey("terminal", ordinal, 0), 0)
        turn = before.turn(f"e{ordinal}", [5], b"s")
        assert turn is not None
        turn.closed(OpenStream("e", "b", low, low, [1], [-1.0], certain=1), "stop")
    await before.close()

    journal = TurnJournal.opened(run, identity, lambda *_: False)
    player = ScriptedPlayer(version=3)
    player.gate.clear()
    rig = Rig(batch_config(max_staleness=1), player, journal=journal)
    rig.buffer.next_step = 4  # version 2 is the oldest that it may be trained on
    async with rig.running():
        await eventually(lambda: rig.scheduler.in_flight == 8, "as many as may be are played")
        told = journal.turn("a1-g000001-e0", [5], b"s")
        assert told is not None
        assert told.tokens == 1
        rig.buffer.next_step = 5
        rig.scheduler.cancel_hopeless()
        await eventually(lambda: rig.scheduler.in_flight == 7, "one is too old")
    assert player.cancelled[0] == "a1-g000001-e0"
    again = TurnJournal.opened(run, identity, lambda *_: False)
    assert again.begins("e", TurnKey("terminal", 1, 0), 3).version_low == 3, "who is cut off leaves all to the next"


async def test_an_episode_that_waits_for_room_does_not_grow_old() -> None:
    rooms = asyncio.Semaphore(0)
    rig = Rig(batch_config(oversampling=2.0), ScriptedPlayer(rooms=rooms))
    async with rig.running():
        await eventually(lambda: rig.scheduler.under_way() == 8, "as many as may be are asked for")
        assert rig.scheduler.in_flight == 0
        for _ in range(4):
            rooms.release()
        await rig.buffer.batch()
        rig.scheduler.cancel_hopeless()
        rig.update(1)
        for _ in range(4):
            rooms.release()
        second = await rig.buffer.batch()
    assert rig.counters.totals["failures/cancelled"] == 0
    assert {group for group, _, _ in rig.player.started} == {f"a1-g{number:06d}" for number in (1, 2, 3, 4)}
    assert {one.staleness(2) for one in second} == {0}


async def test_after_the_last_step_nothing_is_started_and_the_rest_is_cancelled() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), max_steps=2)
    async with rig.running():
        for _ in range(2):
            await rig.buffer.batch()
        rig.scheduler.cancel_hopeless()
        await eventually(lambda: not rig.player.playing, "episodes in flight end")
        assert rig.scheduler.capacity() == 0
        assert len(rig.player.played) == 8


async def test_a_later_last_step_starts_episodes_again_and_an_earlier_one_ends_them() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), max_steps=1)
    async with rig.running():
        await rig.buffer.batch()
        rig.scheduler.cancel_hopeless()
        await rig.idle()
        assert len(rig.player.played) == 4
        rig.player.gate.clear()
        rig.scheduler.adopt(rig.environments, 3)
        await eventually(lambda: len(rig.player.playing) == 8, "two more batches are played")
        rig.scheduler.adopt(rig.environments, 1)
        await eventually(lambda: not rig.player.playing, "episodes in flight end")
    assert rig.counters.totals["failures/cancelled"] == 8


async def test_a_group_keeps_the_sampling_that_it_began_with() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), [environment(max_concurrent=2)])
    warmer = environment(max_concurrent=2, sampling=SamplingConfig(temperature=0.5))
    rig.player.gate.clear()
    async with rig.running():
        await eventually(lambda: len(rig.player.playing) == 2, "one group is played")
        rig.scheduler.adopt([warmer], 100)
        rig.player.gate.set()
        await rig.buffer.batch()
    groups: dict[str, set[float]] = {}
    for episode, temperature in rig.player.temperatures.items():
        groups.setdefault(episode.rpartition("-")[0], set()).add(temperature)
    assert list(groups.values())[:2] == [{1.0}, {0.5}]


async def test_an_error_of_our_own_ends_the_scheduler() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        raise KeyError("a bug")

    with pytest.raises(BaseExceptionGroup, match="TaskGroup"):
        await Rig(batch_config(), ScriptedPlayer(script=script)).scheduler.run()


@settings(max_examples=30, deadline=None)
@given(
    staleness=st.integers(0, 3),
    oversampling=st.sampled_from([1.0, 1.5, 3.0]),
    group_size=st.integers(1, 3),
    groups=st.integers(1, 3),
    failing_share=st.integers(0, 4),
    lag=st.lists(st.integers(0, 2), min_size=1, max_size=8),
)
async def test_no_stale_sample_and_every_episode_used_once_or_reported(
    staleness: int, oversampling: float, group_size: int, groups: int, failing_share: int, lag: list[int]
) -> None:
    """The trainer lags behind the sealed batches by ``lag`` versions where staleness lets it."""

    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        number = sum(map(ord, episode))
        error = ErrorKind.ENV if failing_share and number % (7 - failing_share) == 0 else None
        older = max(0, version - number % 2) if staleness else version
        return outcome(episode, version=older, reward=float(number % 3), error=error)

    config = batch_config(
        group_size=group_size, batch_size=group_size * groups, max_staleness=staleness, oversampling=oversampling
    )
    rig = Rig(config, ScriptedPlayer(script=script), max_steps=len(lag))
    used: list[ReadyEpisode] = []
    async with rig.running():
        for step, behind in enumerate(lag, start=1):
            rig.update(max(rig.player.version, step - 1 - min(behind, staleness)))
            try:
                async with asyncio.timeout(0.05):
                    batch = await rig.buffer.batch()
            except TimeoutError:
                rig.update(step - 1)
                batch = await rig.buffer.batch()
            assert all(one.staleness(step) <= staleness for one in batch)
            assert len(batch) == config.batch_size
            used += batch
            rig.scheduler.cancel_hopeless()
        await eventually(lambda: not rig.player.playing, "the last episodes end")
        await eventually(lambda: rig.scheduler.under_way() == len(rig.buffer.ready), "groups close")
        rig.buffer.discard()
    assert max(Counter(one.outcome.episode for one in used).values()) == 1
    survived = [one.episode for one in rig.player.played if one.error_kind is None]
    assert {one.outcome.episode for one in used} <= set(survived)
    dropped = sum(count for name, count in rig.counters.totals.items() if name.startswith("dropped/"))
    assert len(survived) == len(used) + dropped


async def test_a_group_that_lost_episodes_is_told_in_one_line_of_the_log() -> None:
    """Of each group of four two episodes fail, for two reasons; the others are a group of their own."""
    errors = {"1": ErrorKind.ENV, "3": ErrorKind.PROVIDER}

    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        return outcome(episode, version=version, error=errors.get(episode[-1]))

    rig = Rig(batch_config(group_size=4, batch_size=4), ScriptedPlayer(script=script))
    with capture_logs() as logs:
        async with rig.running():
            await rig.buffer.batch()
    told = [line for line in logs if line["event"] == "a group closed without some of its episodes"]
    assert len(told) == rig.counters.totals["groups/partial"] >= 2
    assert {line["environment"] for line in told} == {"terminal"}
    assert all((line["of"], line["failed"]) == (4, {"env": 1, "provider": 1}) for line in told)
    assert len({line["group"] for line in told}) == len(told)


async def test_groups_have_the_size_of_their_environment() -> None:
    sampling = SamplingConfig(temperature=0.5)
    small = environment("small", algorithm=OverridesConfig(group_size=1), sampling=sampling)
    rig = Rig(batch_config(batch_size=6), ScriptedPlayer(), [environment("terminal"), small])
    async with rig.running():
        await rig.idle()
    groups = Counter((heat, episode.rsplit("-e", 1)[0]) for episode, heat in rig.player.temperatures.items())
    assert {(heat, count) for (heat, _), count in groups.items()} == {(1.0, 2), (0.5, 1)}


@pytest.mark.parametrize(
    "fields", [{}, {"oversampling": 3.0}, {"group_size": 16}], ids=["plain", "oversampled", "large groups"]
)
async def test_what_no_policy_samples_never_grows_old_and_is_made_ahead_of_the_trainer(fields: dict[str, Any]) -> None:
    config = batch_config(**{"mode": "sft", "group_size": 1, "max_staleness": 1, **fields})
    rig = Rig(config, ScriptedPlayer(script=unscored))
    step = 0
    async with rig.running():
        for trained in range(5):
            rig.update(trained)
            # Batches up to trained + 1 + maxStaleness, and no more however much is ready: a sealed one takes disk.
            while step < trained + 2:
                step += 1
                batch = await rig.buffer.batch()
                assert len(batch) == 4
                assert {one.staleness(step) for one in batch} == {0}
                assert {one.advantage for one in batch} == {0.0}
                rig.scheduler.cancel_hopeless()
            await rig.idle()
            assert rig.buffer.take() is None
    assert not rig.counters.totals["dropped/stale"]
    assert not rig.counters.totals["episodes/failed"]


def unscored(episode: str, group: str, version: int) -> EpisodeOutcome:
    return outcome(episode, version=version, reward=None, samples=[])
