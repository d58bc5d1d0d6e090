"""Which ready episodes make a batch, and what is told of those that do not."""

import asyncio
import math

import pytest

from echorl_core.config import FilterConfig
from echorl_core.names import ExitCode
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.failures import RunFailure
from echorl_orchestrator.rollout.groups import Group, close
from echorl_testing.orchestrator.scripted_player import A, C, ScriptedPlayer, batch_config, eventually, outcome, sample
from echorl_testing.orchestrator.scripted_scheduler import Rig
from echorl_testing.virtual_time import run_in_virtual_time


async def test_stale_episodes_leave_the_batch_and_stay_in_the_baseline() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        old = version == 3 and episode.endswith("g000003-e0")
        return outcome(episode, version=1 if old else version, reward=float(episode[-1] == "0"))

    rig = Rig(batch_config(max_staleness=0), ScriptedPlayer(script=script))
    rig.buffer.next_step = 4
    rig.player.version = 3
    async with rig.running():
        await rig.buffer.batch()
        rig.update(4)
        await rig.idle()
    assert rig.counters.totals["dropped/stale"] == 0
    rig = Rig(batch_config(max_staleness=1), ScriptedPlayer(script=script))
    rig.buffer.next_step = 4
    rig.player.version = 3
    async with rig.running():
        batches = [await rig.buffer.batch() for _ in range(2)]
    sibling = next(one for batch in batches for one in batch if one.outcome.episode.endswith("g000003-e1"))
    assert sibling.advantage == -0.5
    assert rig.counters.totals["dropped/stale"] == 1
    assert all(one.staleness(step) <= 1 for step, batch in zip((4, 5), batches, strict=True) for one in batch)


async def test_a_wait_for_a_batch_can_be_interrupted_and_loses_nothing() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    rig.player.gate.clear()
    stop: list[bool] = []
    async with rig.running():
        waiting = asyncio.create_task(rig.buffer.batch_unless(lambda: bool(stop), lambda step: 0.0))
        await eventually(lambda: len(rig.player.playing) == 4, "a batch is played")
        stop.append(True)
        rig.buffer.wake()
        assert await waiting is None
        rig.player.gate.set()
        await eventually(lambda: len(rig.buffer.ready) == 4, "its episodes are ready")
        assert await rig.buffer.batch_unless(lambda: True, lambda step: 0.0) is None
        assert len(await rig.buffer.batch()) == 4


def admit(rig: Rig, name: str, *, version: int) -> None:
    """A group of two episodes closes."""
    outcomes = {index: outcome(f"{name}-e{index}", version=version) for index in range(2)}
    rig.buffer.admit(close(Group(name, rig.deck.take(), 2, 0, outcomes), batch_config(max_staleness=1)))


def test_until_a_batch_is_due_older_episodes_may_still_come_and_go_first() -> None:
    async def life() -> list[str]:
        rig, clock = Rig(batch_config(max_staleness=1), ScriptedPlayer(version=1)), asyncio.get_running_loop().time
        rig.buffer.next_step = 2
        admit(rig, "a1-g000002", version=1)
        admit(rig, "a1-g000003", version=1)
        due = clock() + 7
        waiting = asyncio.create_task(
            rig.buffer.batch_unless(lambda: False, lambda step: max(0.0, due - clock()) if step == 2 else math.inf)
        )
        await asyncio.sleep(6.0)
        assert not waiting.done()
        admit(rig, "a1-g000001", version=0)
        taken = await waiting
        assert taken is not None
        assert clock() == pytest.approx(due)
        return [one.group for one in taken]

    assert run_in_virtual_time(life()) == ["a1-g000001"] * 2 + ["a1-g000002"] * 2


async def test_of_one_version_those_that_began_first_go_first_whenever_they_ended() -> None:
    rig = Rig(batch_config(max_staleness=1), ScriptedPlayer(version=0))
    for name in ("a1-g000002", "a1-g000003", "a1-g000001"):
        admit(rig, name, version=0)
    assert [one.group for one in await rig.buffer.batch()] == ["a1-g000001"] * 2 + ["a1-g000002"] * 2


async def test_batches_measured_in_tokens_end_with_the_episode_that_fills_them() -> None:
    config = batch_config(batch_size=None, token_batch_size=10, max_staleness=1)
    rig = Rig(config, ScriptedPlayer())
    async with rig.running():
        batch = await rig.buffer.batch()
        assert len(batch) == 3  # four trainable tokens each
        assert rig.buffer.episodes_per_batch() == 3
        await rig.buffer.batch()


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_batches_measured_in_tokens_fill_up_though_episodes_have_grown_short(max_staleness: int) -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        actions = 40 if group.endswith("000001") else 2
        samples = [sample([C, *[A] * actions], episode=episode, version=version)]
        return outcome(episode, version=version, reward=float(episode[-1] == "0"), samples=samples)

    config = batch_config(batch_size=None, token_batch_size=60, max_staleness=max_staleness)
    rig = Rig(config, ScriptedPlayer(script=script))
    async with rig.running(), asyncio.timeout(60):
        for step in (1, 2, 3):
            batch = await rig.buffer.batch()
            assert sum(one.trainable_tokens() for one in batch) >= 60
            rig.update(step)


async def test_group_stage_filters_keep_idle_episodes_from_taking_a_place() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        same = int(group[-1]) % 2 == 1
        found = outcome(episode, reward=1.0 if same else float(episode[-1] == "0"), version=version)
        found.samples = [sample([C, A], episode=episode, version=version)]
        return found

    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group", scope="rl")])
    rig = Rig(config, ScriptedPlayer(script=script))
    async with rig.running():
        batch = await rig.buffer.batch()
    assert all(one.advantage for one in batch)
    assert rig.counters.totals["dropped/filtered"] >= 4


async def test_batches_measured_in_tokens_outlast_filtered_groups_at_the_start() -> None:
    """The first five groups, of four sampled tokens each, are less than the three batches that end a run."""

    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        differs = int(group[-6:]) > 5 and episode.endswith("0")
        return outcome(episode, version=version, reward=float(differs))

    rules = [FilterConfig(type="zeroAdvantage", stage="group", scope="all")]
    rig = Rig(batch_config(batch_size=None, token_batch_size=20, filters=rules), ScriptedPlayer(script=script))
    async with rig.running(), asyncio.timeout(60):
        batch = await rig.buffer.batch()
    assert all(one.advantage for one in batch)
    never = ScriptedPlayer(script=lambda episode, group, version: outcome(episode, version=version))
    rig = Rig(batch_config(batch_size=None, token_batch_size=20, filters=rules), never)
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(rig.scheduler.run(), 60)
    (failure,) = caught.value.exceptions
    assert isinstance(failure, RunFailure)
    assert failure.code is ExitCode.NOTHING_TO_TRAIN
    assert "30 episodes in a row" in failure.message


async def test_filters_that_leave_nothing_end_the_run() -> None:
    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group", scope="all")])
    rig = Rig(config, ScriptedPlayer(script=lambda episode, group, version: outcome(episode, version=version)))
    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.scheduler.run()
    (failure,) = caught.value.exceptions
    assert isinstance(failure, RunFailure)
    assert failure.code is ExitCode.NOTHING_TO_TRAIN
    assert "12 episodes in a row" in failure.message


async def test_an_empty_batch_is_tried_again_and_then_ends_the_run() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    async with rig.running():
        for _ in range(2):
            rig.buffer.give_up(await rig.buffer.batch())
            assert rig.buffer.next_step == 1
        with pytest.raises(RunFailure, match=r"step 1: 3 batches in a row .* rewards of the last one: 0, 1"):
            rig.buffer.give_up(await rig.buffer.batch())
    assert rig.counters.totals["dropped/emptyBatch"] == 12


async def test_filtered_episodes_stay_for_metrics_without_their_tokens() -> None:
    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group", scope="all")])
    script = lambda episode, group, version: outcome(episode, version=version, reward=0.25)  # noqa: E731
    told: list[tuple[int, int]] = []
    on_filtered = lambda step, episode: told.append((step, len(episode.outcome.samples)))  # noqa: E731
    rig = Rig(config, ScriptedPlayer(script=script), on_filtered=on_filtered)
    with pytest.raises(BaseExceptionGroup, match="TaskGroup") as caught:
        await rig.scheduler.run()
    assert told == [(1, 1)] * 12
    (failure,) = caught.value.exceptions
    assert "12 episodes in a row had nothing to train; filters matched: zeroAdvantage 12 of 12" in str(failure)
    filtered = rig.buffer.take_filtered()
    assert [one.outcome.reward for one in filtered] == [0.25] * 12
    assert not any(one.outcome.samples for one in filtered)
    assert {(one.outcome.kept_branches, one.verdict.hits) for one in filtered} == {(1, ("zeroAdvantage",))}
    assert rig.buffer.take_filtered() == []


async def test_episodes_of_an_empty_batch_stay_for_metrics() -> None:
    told: list[int] = []
    rig = Rig(batch_config(), ScriptedPlayer(), on_filtered=lambda step, episode: told.append(step))
    async with rig.running():
        rig.buffer.give_up(await rig.buffer.batch())
    assert told == [1, 1, 1, 1]
    assert [one.outcome.reward for one in rig.buffer.take_filtered()] == [1.0, 0.0, 1.0, 0.0]


async def test_episodes_without_a_trainable_token_end_a_run_whose_batches_are_measured_in_tokens() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        found = outcome(episode, reward=float(episode[-1] == "0"), version=version)
        found.samples = [sample([C, C], episode=episode, version=version)]
        return found

    rig = Rig(batch_config(batch_size=None, token_batch_size=10), ScriptedPlayer(script=script))
    with pytest.raises(BaseExceptionGroup) as caught:
        async with asyncio.timeout(60):
            await rig.scheduler.run()
    (failure,) = caught.value.exceptions
    assert isinstance(failure, RunFailure)
    assert failure.code is ExitCode.NOTHING_TO_TRAIN
    assert "6 episodes in a row had nothing to train; filters matched: none" in failure.message
