"""What becomes of groups whose episodes have ended: failures, group scores, a user's own advantages and filters."""

import asyncio
import re
from collections.abc import Callable

import pytest

from echorl_core.config import AdvantageConfig, EnvironmentConfig, FilterConfig, HookConfig
from echorl_core.names import ExitCode
from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs
from echorl_orchestrator.control.supervision import failure_in
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind, RunFailure
from echorl_orchestrator.filters.filter_hook import FilterEpisode
from echorl_orchestrator.filters.rules import Verdict
from echorl_testing.orchestrator.scripted_player import ScriptedPlayer, batch_config, outcome
from echorl_testing.orchestrator.scripted_scheduler import Rig, failing


async def test_survivors_of_a_broken_group_make_a_partial_one() -> None:
    rig = Rig(batch_config(group_size=4), ScriptedPlayer(script=failing("e3")))
    async with rig.running():
        batch = await rig.buffer.batch()
        await rig.idle()
    assert rig.counters.totals["groups/partial"] == 2
    assert {one.partial for one in batch} == {True}
    assert rig.counters.totals["failures/provider"] == 2
    first = [one for one in batch if one.group == batch[0].group]
    assert [one.advantage for one in first] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    # Two survivors are left over; with maxStaleness 0 they are too old for batch 2.
    rig.update(1)
    assert rig.buffer.take() is None
    assert rig.counters.totals["dropped/stale"] == 2


async def test_a_group_without_survivors_is_dropped_and_replaced() -> None:
    script = lambda episode, group, version: outcome(  # noqa: E731
        episode, version=version, error=ErrorKind.TIMEOUT if group.endswith("1") else None
    )
    rig = Rig(batch_config(), ScriptedPlayer(script=script))
    async with rig.running():
        batch = await rig.buffer.batch()
    assert rig.counters.totals["groups/dropped"] == 1
    assert not any(one.group.endswith("1") for one in batch)
    assert all(cursor.returned == [] or cursor.next > 2 for cursor in rig.deck.state().cursors.values())


async def test_group_scoring_replaces_rewards_and_falls_as_a_whole() -> None:
    player = ScriptedPlayer(script=failing("g000001-e1"), scores=lambda outcomes: [5.0] + [1.0] * (len(outcomes) - 1))
    rig = Rig(batch_config(), player)
    async with rig.running():
        batch = await rig.buffer.batch()
    assert {one.outcome.reward for one in batch} == {5.0, 1.0}
    assert not any(one.group.endswith("g000001") for one in batch)
    assert rig.counters.totals["dropped/group"] == 1


def without_score(outcomes: list[EpisodeOutcome]) -> list[float] | None:
    return None


@pytest.mark.parametrize(
    ("scores", "told"),
    [
        (lambda outcomes: [float("nan")] * len(outcomes), r"could not be scored: score_group returned \[nan, nan\]"),
        (without_score, "the episode ended without a reward"),
    ],
)
async def test_groups_that_can_never_be_scored_end_the_run(
    scores: Callable[[list[EpisodeOutcome]], list[float] | None], told: str
) -> None:
    """Though every one of their episodes ended well."""
    script = lambda episode, group, version: outcome(episode, reward=None, version=version)  # noqa: E731
    rig = Rig(batch_config(), ScriptedPlayer(script=script, scores=scores), limit=10)
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(rig.scheduler.run(), 60)
    failure = failure_in(caught.value)
    assert isinstance(failure, RunFailure)
    assert failure.code is ExitCode.ENVIRONMENT
    assert re.search(f"10 episodes failed one after the other; .*{told}", failure.message)


async def test_scores_that_do_not_fit_drop_the_group() -> None:
    seen: list[int] = []

    def scores(outcomes: list[EpisodeOutcome]) -> list[float]:
        seen.append(len(outcomes))
        if len(seen) == 1:
            raise EpisodeError(ErrorKind.ENV, "scripted")
        return [0.5, float("nan")] if len(seen) == 2 else [1.0, 0.0]

    rig = Rig(batch_config(), ScriptedPlayer(scores=scores))
    async with rig.running():
        batch = await rig.buffer.batch()
    assert rig.counters.totals["dropped/group"] == 4
    assert rig.counters.totals["failures/env"] == 2
    assert {one.outcome.reward for one in batch} == {1.0, 0.0}


class Failed:
    """What the scheduler told of episodes that failed, by name: step, kind, error."""

    def __init__(self) -> None:
        self.told: dict[str, tuple[int, ErrorKind, str]] = {}

    def __call__(self, step: int, episode: FailedEpisode) -> None:
        name = episode.outcome.episode
        assert name not in self.told
        assert name.startswith(f"{episode.group}-")
        self.told[name] = (step, episode.kind, episode.error)


async def test_every_failure_is_told_once_with_the_step_that_was_being_filled() -> None:
    failed = Failed()
    rig = Rig(batch_config(), ScriptedPlayer(script=failing("g000001-e1", "g000004-e0")), on_failed=failed)
    async with rig.running():
        first = await rig.buffer.batch()
        rig.update(1)
        second = await rig.buffer.batch()
    assert failed.told == {
        "a1-g000001-e1": (1, ErrorKind.PROVIDER, "scripted provider"),
        "a1-g000004-e0": (2, ErrorKind.PROVIDER, "scripted provider"),
    }
    assert not {one.outcome.episode for one in first + second} & set(failed.told)


async def test_what_ended_well_and_could_not_be_scored_is_told_too() -> None:
    failed, answers = Failed(), iter([EpisodeError(ErrorKind.ENV, "scripted"), [0.5, 0.25, 1.0]])

    def scores(outcomes: list[EpisodeOutcome]) -> list[float] | None:
        answer = next(answers, None)
        if isinstance(answer, EpisodeError):
            raise answer
        return answer

    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        reward = None if episode == "a1-g000003-e1" else float("inf") if episode == "a1-g000004-e0" else 1.0
        return outcome(episode, version=version, reward=reward)

    rig = Rig(batch_config(), ScriptedPlayer(script=script, scores=scores), on_failed=failed)
    async with rig.running():
        await rig.buffer.batch()
    two = "score_group returned [0.5, 0.25, 1.0], accepted are 2 finite numbers"
    assert failed.told == {
        "a1-g000001-e0": (1, ErrorKind.ENV, "the group could not be scored: scripted"),
        "a1-g000001-e1": (1, ErrorKind.ENV, "the group could not be scored: scripted"),
        "a1-g000002-e0": (1, ErrorKind.ENV, f"the group could not be scored: {two}"),
        "a1-g000002-e1": (1, ErrorKind.ENV, f"the group could not be scored: {two}"),
        "a1-g000003-e1": (1, ErrorKind.ENV, "the episode ended without a reward"),
        "a1-g000004-e0": (1, ErrorKind.ENV, "found the reward inf, accepted is a finite number"),
    }


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
            await rig.buffer.batch()
            rig.update(step)
    assert rig.counters.totals["failures/provider"] >= 6


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
        assert len(await rig.buffer.batch()) == 4
    assert rig.counters.totals["groups/dropped"] == 1
    assert rig.counters.totals["failures/env"] == 2


OWN = AdvantageConfig(type="custom", hook=HookConfig(import_path="mine:best"))


async def test_own_advantages_are_asked_for_once_a_group_with_its_survivors() -> None:
    player = ScriptedPlayer(failing("e2"), own_advantages=lambda inputs: [2.0 * one.reward for one in inputs.episodes])
    rig = Rig(batch_config(group_size=3, batch_size=2, advantage=OWN), player)
    async with rig.running():
        batch = await rig.buffer.batch()
    assert sorted(one.advantage for one in batch) == [0.0, 2.0]
    asked = player.asked[0]
    assert (asked.environment, asked.group_size, [one.reward for one in asked.episodes]) == ("terminal", 3, [1.0, 0.0])


async def test_group_scores_reach_own_advantages() -> None:
    player = ScriptedPlayer(
        scores=lambda outcomes: [5.0, 7.0], own_advantages=lambda inputs: [-one.reward for one in inputs.episodes]
    )
    rig = Rig(batch_config(batch_size=2, advantage=OWN), player)
    async with rig.running():
        batch = await rig.buffer.batch()
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
        batch = await rig.buffer.batch()
    assert [one.outcome.reward for one in batch] == [1.0] * 4
    assert {(one.verdict, one.matched) for one in batch} == {(Verdict(), frozenset({1}))}
    assert rig.counters.totals["dropped/filtered"] == len(rig.buffer.take_filtered()) >= 4
