import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.config import (
    AdvantageConfig,
    BatchConfig,
    EnvironmentConfig,
    FilterConfig,
    HookConfig,
    OverridesConfig,
    SamplingConfig,
)
from echorl_core.names import ExitCode
from echorl_orchestrator.advantage_hook import AdvantageInputs
from echorl_orchestrator.collector import Collector
from echorl_orchestrator.cursor import Deck
from echorl_orchestrator.filter_hook import FilterEpisode
from echorl_orchestrator.filters import Verdict
from echorl_orchestrator.groups import ReadyEpisode
from echorl_orchestrator.refusals import BadInputError
from echorl_orchestrator.scheduler import Horizon, Scheduler, capacity
from echorl_orchestrator.supervision import failure_in
from echorl_orchestrator.tally import FailureLimit, RunFailure, Tally
from echorl_orchestrator.types import EpisodeError, EpisodeOutcome, ErrorKind
from echorl_testing.scripted_player import A, C, ScriptedPlayer, batch_config, environment, eventually, outcome, sample


class Rig:
    def __init__(
        self,
        config: BatchConfig,
        player: ScriptedPlayer,
        environments: list[EnvironmentConfig] | None = None,
        *,
        max_steps: int = 100,
        limit: int = 1000,
        ahead: bool = False,
    ) -> None:
        self.player = player
        self.tally = Tally()
        self.environments = environments or [environment()]
        self.deck = Deck(self.environments, {one.name: player.num for one in self.environments}, 0)
        self.collector = Collector(config, deck=self.deck, tally=self.tally, next_step=1, max_empty_batches=3)
        self.scheduler = Scheduler(
            config,
            self.environments,
            player=player,
            deck=self.deck,
            collector=self.collector,
            version=(lambda: self.collector.next_step - 1) if ahead else lambda: player.version,
            horizon=Horizon(1, 0, max_steps),
            groups_started=0,
            tally=self.tally,
            failures=FailureLimit(limit),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        task = asyncio.create_task(self.scheduler.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def idle(self) -> None:
        """Until nothing is played and nothing more may be started."""
        at_rest = lambda: not self.player.playing and self.scheduler.under_way() >= self.scheduler.capacity()  # noqa: E731
        await eventually(at_rest, "the scheduler comes to rest")

    def update(self, version: int) -> None:
        self.player.update(version)
        self.scheduler.wake()


def failing(*bad: str, kind: ErrorKind = ErrorKind.PROVIDER) -> Callable[[str, str, int], EpisodeOutcome]:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        error = kind if any(episode.endswith(one) for one in bad) else None
        return outcome(episode, version=version, error=error, reward=float(episode[-1] == "0"))

    return script


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
            batch = await rig.collector.batch()
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
        batches = [await rig.collector.batch() for _ in range(3)]
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
        assert len(await rig.collector.batch()) == 4


async def test_a_group_shares_task_and_seed() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    async with rig.running():
        await rig.collector.batch()
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
            await rig.collector.batch()
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
        await rig.collector.batch()


async def test_tasks_in_batches_are_used_up_and_those_in_flight_come_back() -> None:
    rig = Rig(batch_config(max_staleness=1), ScriptedPlayer())
    async with rig.running():
        batch = await rig.collector.batch()
        state = rig.deck.state().cursors["terminal"]
        used = {one.ticket.ordinal for one in batch}
        assert len(used) == 2
        assert set(state.returned) == set(range(state.next)) - used
        assert state.next >= 3


async def test_survivors_of_a_broken_group_make_a_partial_one() -> None:
    rig = Rig(batch_config(group_size=4), ScriptedPlayer(script=failing("e3")))
    async with rig.running():
        batch = await rig.collector.batch()
        await rig.idle()
    assert rig.tally.totals["groups/partial"] == 2
    assert {one.partial for one in batch} == {True}
    assert rig.tally.totals["failures/provider"] == 2
    first = [one for one in batch if one.group == batch[0].group]
    assert [one.advantage for one in first] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    # Two survivors are left over; with maxStaleness 0 they are too old for batch 2.
    rig.update(1)
    assert rig.collector.take() is None
    assert rig.tally.totals["dropped/stale"] == 2


async def test_a_group_without_survivors_is_dropped_and_replaced() -> None:
    script = lambda episode, group, version: outcome(  # noqa: E731
        episode, version=version, error=ErrorKind.TIMEOUT if group.endswith("1") else None
    )
    rig = Rig(batch_config(), ScriptedPlayer(script=script))
    async with rig.running():
        batch = await rig.collector.batch()
    assert rig.tally.totals["groups/dropped"] == 1
    assert not any(one.group.endswith("1") for one in batch)
    assert all(cursor.returned == [] or cursor.next > 2 for cursor in rig.deck.state().cursors.values())


async def test_group_scoring_replaces_rewards_and_falls_as_a_whole() -> None:
    player = ScriptedPlayer(script=failing("g000001-e1"), scores=lambda outcomes: [5.0] + [1.0] * (len(outcomes) - 1))
    rig = Rig(batch_config(), player)
    async with rig.running():
        batch = await rig.collector.batch()
    assert {one.outcome.reward for one in batch} == {5.0, 1.0}
    assert not any(one.group.endswith("g000001") for one in batch)
    assert rig.tally.totals["dropped/group"] == 1


async def test_scores_that_do_not_fit_drop_the_group() -> None:
    seen: list[int] = []

    def scores(outcomes: list[EpisodeOutcome]) -> list[float]:
        seen.append(len(outcomes))
        if len(seen) == 1:
            raise EpisodeError(ErrorKind.ENV, "scripted")
        return [0.5, float("nan")] if len(seen) == 2 else [1.0, 0.0]

    rig = Rig(batch_config(), ScriptedPlayer(scores=scores))
    async with rig.running():
        batch = await rig.collector.batch()
    assert rig.tally.totals["dropped/group"] == 4
    assert rig.tally.totals["failures/env"] == 2
    assert {one.outcome.reward for one in batch} == {1.0, 0.0}


async def test_stale_episodes_leave_the_batch_and_stay_in_the_baseline() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        old = version == 3 and episode.endswith("g000003-e0")
        return outcome(episode, version=1 if old else version, reward=float(episode[-1] == "0"))

    rig = Rig(batch_config(max_staleness=0), ScriptedPlayer(script=script))
    rig.collector.next_step = 4
    rig.player.version = 3
    async with rig.running():
        await rig.collector.batch()
        rig.update(4)
        await rig.idle()
    assert rig.tally.totals["dropped/stale"] == 0
    rig = Rig(batch_config(max_staleness=1), ScriptedPlayer(script=script))
    rig.collector.next_step = 4
    rig.player.version = 3
    async with rig.running():
        batches = [await rig.collector.batch() for _ in range(2)]
    sibling = next(one for batch in batches for one in batch if one.outcome.episode.endswith("g000003-e1"))
    assert sibling.advantage == -0.5
    assert rig.tally.totals["dropped/stale"] == 1
    assert all(one.staleness(step) <= 1 for step, batch in zip((4, 5), batches, strict=True) for one in batch)


async def test_episodes_that_no_batch_can_use_are_cancelled() -> None:
    player = ScriptedPlayer()
    rig = Rig(batch_config(oversampling=2.0), player)
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
        await rig.collector.batch()
        assert rig.scheduler.in_flight == 4
        rig.scheduler.cancel_hopeless()
        await eventually(lambda: rig.scheduler.in_flight == 0, "nothing is in flight before the update")
        rig.update(1)
        assert player.across == []
        hold.set()
        await rig.collector.batch()
    assert rig.tally.totals["failures/cancelled"] == 4
    assert rig.tally.totals["groups/dropped"] == 2


async def test_after_the_last_step_nothing_is_started_and_the_rest_is_cancelled() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), max_steps=2)
    async with rig.running():
        for _ in range(2):
            await rig.collector.batch()
        rig.scheduler.cancel_hopeless()
        await eventually(lambda: not rig.player.playing, "episodes in flight end")
        assert rig.scheduler.capacity() == 0
        assert len(rig.player.played) == 8


async def test_a_later_last_step_starts_episodes_again_and_an_earlier_one_ends_them() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), max_steps=1)
    async with rig.running():
        await rig.collector.batch()
        rig.scheduler.cancel_hopeless()
        await rig.idle()
        assert len(rig.player.played) == 4
        rig.player.gate.clear()
        rig.scheduler.adopt(rig.environments, 3)
        await eventually(lambda: len(rig.player.playing) == 8, "two more batches are played")
        rig.scheduler.adopt(rig.environments, 1)
        await eventually(lambda: not rig.player.playing, "episodes in flight end")
    assert rig.tally.totals["failures/cancelled"] == 8


async def test_a_group_keeps_the_sampling_that_it_began_with() -> None:
    rig = Rig(batch_config(max_staleness=5), ScriptedPlayer(), [environment(max_concurrent=2)])
    warmer = environment(max_concurrent=2, sampling=SamplingConfig(temperature=0.5))
    rig.player.gate.clear()
    async with rig.running():
        await eventually(lambda: len(rig.player.playing) == 2, "one group is played")
        rig.scheduler.adopt([warmer], 100)
        rig.player.gate.set()
        await rig.collector.batch()
    groups: dict[str, set[float]] = {}
    for episode, temperature in rig.player.temperatures.items():
        groups.setdefault(episode.rpartition("-")[0], set()).add(temperature)
    assert list(groups.values())[:2] == [{1.0}, {0.5}]


async def test_a_wait_for_a_batch_can_be_interrupted_and_loses_nothing() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    rig.player.gate.clear()
    stop: list[bool] = []
    async with rig.running():
        waiting = asyncio.create_task(rig.collector.batch_unless(lambda: bool(stop)))
        await eventually(lambda: len(rig.player.playing) == 4, "a batch is played")
        stop.append(True)
        rig.collector.wake()
        assert await waiting is None
        rig.player.gate.set()
        await eventually(lambda: len(rig.collector.ready) == 4, "its episodes are ready")
        assert await rig.collector.batch_unless(lambda: True) is None
        assert len(await rig.collector.batch()) == 4


async def test_too_many_failures_in_a_row_end_the_run_with_the_reason() -> None:
    rig = Rig(batch_config(), ScriptedPlayer(script=failing("e0", "e1")), limit=5)
    with pytest.raises(BaseExceptionGroup) as caught:
        await rig.scheduler.run()
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, RunFailure)
    assert error.code is ExitCode.ENVIRONMENT
    assert "5 episodes failed one after the other; the last one: provider: scripted provider" in error.message


async def test_a_success_in_between_resets_the_count() -> None:
    rig = Rig(batch_config(), ScriptedPlayer(script=failing("e1")), limit=2)
    async with rig.running():
        for step in range(1, 4):
            await rig.collector.batch()
            rig.update(step)
    assert rig.tally.totals["failures/provider"] >= 6


async def test_a_task_that_cannot_be_read_costs_its_group() -> None:
    player = ScriptedPlayer()
    task = player.task
    failed: list[int] = []

    async def once(config: EnvironmentConfig, index: int) -> dict[str, object]:
        if not failed:
            failed.append(index)
            raise EpisodeError(ErrorKind.ENV, "no such file")
        return await task(config, index)

    player.task = once  # type: ignore[method-assign]
    rig = Rig(batch_config(), player)
    async with rig.running():
        assert len(await rig.collector.batch()) == 4
    assert rig.tally.totals["groups/dropped"] == 1
    assert rig.tally.totals["failures/env"] == 2


async def test_an_error_of_our_own_ends_the_scheduler() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        raise KeyError("a bug")

    with pytest.raises(BaseExceptionGroup, match="TaskGroup"):
        await Rig(batch_config(), ScriptedPlayer(script=script)).scheduler.run()


async def test_batches_measured_in_tokens_end_with_the_episode_that_fills_them() -> None:
    config = batch_config(batch_size=None, token_batch_size=10, max_staleness=1)
    rig = Rig(config, ScriptedPlayer())
    async with rig.running():
        batch = await rig.collector.batch()
        assert len(batch) == 3  # four trainable tokens each
        assert rig.collector.episodes_per_batch() == 3
        await rig.collector.batch()


async def test_group_stage_filters_keep_idle_episodes_from_taking_a_place() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        same = int(group[-1]) % 2 == 1
        found = outcome(episode, reward=1.0 if same else float(episode[-1] == "0"), version=version)
        found.samples = [sample([C, A], episode=episode, version=version)]
        return found

    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group", scope="rl")])
    rig = Rig(config, ScriptedPlayer(script=script))
    async with rig.running():
        batch = await rig.collector.batch()
    assert all(one.advantage for one in batch)
    assert rig.tally.totals["dropped/filtered"] >= 4


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
            rig.collector.give_up(await rig.collector.batch())
            assert rig.collector.next_step == 1
        with pytest.raises(RunFailure, match=r"step 1: 3 batches in a row .* rewards of the last one: 0, 1"):
            rig.collector.give_up(await rig.collector.batch())
    assert rig.tally.totals["dropped/emptyBatch"] == 12


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
                    batch = await rig.collector.batch()
            except TimeoutError:
                rig.update(step - 1)
                batch = await rig.collector.batch()
            assert all(one.staleness(step) <= staleness for one in batch)
            assert len(batch) == config.batch_size
            used += batch
            rig.scheduler.cancel_hopeless()
        await eventually(lambda: not rig.player.playing, "the last episodes end")
        await eventually(lambda: rig.scheduler.under_way() == len(rig.collector.ready), "groups close")
        rig.collector.discard()
    assert max(Counter(one.outcome.episode for one in used).values()) == 1
    survived = [one.episode for one in rig.player.played if one.error_kind is None]
    assert {one.outcome.episode for one in used} <= set(survived)
    dropped = sum(count for name, count in rig.tally.totals.items() if name.startswith("dropped/"))
    assert len(survived) == len(used) + dropped


OWN = AdvantageConfig(type="custom", hook=HookConfig(import_path="mine:best"))


async def test_own_advantages_are_asked_for_once_a_group_with_its_survivors() -> None:
    player = ScriptedPlayer(failing("e2"), own_advantages=lambda inputs: [2.0 * one.reward for one in inputs.episodes])
    rig = Rig(batch_config(group_size=3, batch_size=2, advantage=OWN), player)
    async with rig.running():
        batch = await rig.collector.batch()
    assert sorted(one.advantage for one in batch) == [0.0, 2.0]
    asked = player.asked[0]
    assert (asked.environment, asked.group_size, [one.reward for one in asked.episodes]) == ("terminal", 3, [1.0, 0.0])


async def test_group_scores_reach_own_advantages() -> None:
    player = ScriptedPlayer(
        scores=lambda outcomes: [5.0, 7.0], own_advantages=lambda inputs: [-one.reward for one in inputs.episodes]
    )
    rig = Rig(batch_config(batch_size=2, advantage=OWN), player)
    async with rig.running():
        batch = await rig.collector.batch()
    assert [(one.outcome.reward, one.advantage) for one in batch] == [(5.0, -5.0), (7.0, -7.0)]


async def test_own_advantages_that_fail_end_the_run_as_bad_input() -> None:
    def refused(inputs: AdvantageInputs) -> list[float]:
        raise BadInputError("spec.algorithm.advantage.import 'mine:best': returned NoneType")

    rig = Rig(batch_config(advantage=OWN), ScriptedPlayer(own_advantages=refused))
    with pytest.raises(ExceptionGroup) as caught:
        await rig.scheduler.run()
    failure = failure_in(caught.value)
    assert failure is not None
    assert failure.code is ExitCode.BAD_INPUT
    assert "mine:best" in failure.message


async def test_own_filters_keep_an_episode_out_before_the_batch_or_in_it() -> None:
    def own(index: int, episode: FilterEpisode) -> bool:
        return episode.advantage < 0 if index == 0 else episode.reward == 1.0

    hook = HookConfig(import_path="mine:bad")
    rules = [
        FilterConfig(type="custom", stage="group", scope="all", hook=hook),
        FilterConfig(type="custom", hook=HookConfig(import_path="mine:good")),
    ]
    rig = Rig(batch_config(filters=rules), ScriptedPlayer(own_filters=own))
    async with rig.running():
        batch = await rig.collector.batch()
    assert [one.outcome.reward for one in batch] == [1.0] * 4
    assert {(one.verdict, one.matched) for one in batch} == {(Verdict(), frozenset({1}))}
    assert rig.tally.totals["dropped/filtered"] == len(rig.collector.take_filtered()) >= 4


async def test_filtered_episodes_stay_for_metrics_without_their_tokens() -> None:
    config = batch_config(filters=[FilterConfig(type="zeroAdvantage", stage="group", scope="all")])
    script = lambda episode, group, version: outcome(episode, version=version, reward=0.25)  # noqa: E731
    rig = Rig(config, ScriptedPlayer(script=script))
    told: list[tuple[int, int]] = []
    rig.collector.on_filtered = lambda step, episode: told.append((step, len(episode.outcome.samples)))
    with pytest.raises(BaseExceptionGroup, match="TaskGroup") as caught:
        await rig.scheduler.run()
    assert told == [(1, 1)] * 12
    (failure,) = caught.value.exceptions
    assert "12 episodes in a row; they matched: zeroAdvantage 12 of 12" in str(failure)
    filtered = rig.collector.take_filtered()
    assert [one.outcome.reward for one in filtered] == [0.25] * 12
    assert not any(one.outcome.samples for one in filtered)
    assert {(one.outcome.kept_branches, one.verdict.hits) for one in filtered} == {(1, ("zeroAdvantage",))}
    assert rig.collector.take_filtered() == []


async def test_episodes_of_an_empty_batch_stay_for_metrics() -> None:
    rig = Rig(batch_config(), ScriptedPlayer())
    told: list[int] = []
    rig.collector.on_filtered = lambda step, episode: told.append(step)
    async with rig.running():
        rig.collector.give_up(await rig.collector.batch())
    assert told == [1, 1, 1, 1]
    assert [one.outcome.reward for one in rig.collector.take_filtered()] == [1.0, 0.0, 1.0, 0.0]


async def test_groups_have_the_size_of_their_environment() -> None:
    sampling = SamplingConfig(temperature=0.5)
    small = environment("small", algorithm=OverridesConfig(group_size=1), sampling=sampling)
    rig = Rig(batch_config(batch_size=6), ScriptedPlayer(), [environment("terminal"), small])
    async with rig.running():
        await rig.idle()
    groups = Counter((heat, episode.rsplit("-e", 1)[0]) for episode, heat in rig.player.temperatures.items())
    assert {(heat, count) for (heat, _), count in groups.items()} == {(1.0, 2), (0.5, 1)}


async def test_what_no_policy_samples_never_grows_old_and_is_made_ahead_of_the_trainer() -> None:
    rig = Rig(batch_config(mode="sft", group_size=1, max_staleness=1), ScriptedPlayer(script=unscored), ahead=True)
    async with rig.running():
        for step in range(1, 6):
            batch = await rig.collector.batch()
            assert len(batch) == 4
            assert {one.staleness(step) for one in batch} == {0}
            assert {one.advantage for one in batch} == {0.0}
            rig.scheduler.cancel_hopeless()
        # Two batches, and no more: one that is due, and one that may lie a step further.
        await eventually(lambda: len(rig.collector.ready) == 8, "two batches are made ahead")
        await rig.idle()
        assert len(rig.collector.ready) == 8
    assert not rig.tally.totals["dropped/stale"]
    assert not rig.tally.totals["episodes/failed"]


def unscored(episode: str, group: str, version: int) -> EpisodeOutcome:
    return outcome(episode, version=version, reward=None, samples=[])
