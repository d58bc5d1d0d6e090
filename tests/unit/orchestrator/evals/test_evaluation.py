import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from echorl_core.config import EvalConfig, SamplingConfig
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.evals.evaluation import EvalHorizon, Evals, due
from echorl_orchestrator.failures import EpisodeError, ErrorKind, FailureLimit
from echorl_testing.orchestrator.scripted_player import (
    A,
    C,
    E,
    ScriptedPlayer,
    environment,
    eventually,
    outcome,
    sample,
)


class Scorer:
    """Logprob of token t is -t; sequences named in ``broken`` fail."""

    def __init__(self) -> None:
        self.broken: set[int] = set()
        self.asked = 0

    async def generate(
        self,
        *,
        episode: str,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        max_tokens: int,
        stop_ids: Sequence[int],
    ) -> Generation:
        raise NotImplementedError

    async def prompt_logprobs(self, *, token_ids: Sequence[int]) -> list[float]:
        self.asked += 1
        if self.asked in self.broken:
            raise EpisodeError(ErrorKind.PROVIDER, "scripted")
        return [-float(position) for position in range(1, len(token_ids))]

    def release(self, episode: str) -> None:
        raise NotImplementedError


class Rig:
    def __init__(
        self,
        player: ScriptedPlayer,
        *,
        max_steps: int = 10,
        start_step: int = 0,
        done: Sequence[int] = (),
        recorded_skips: Sequence[int] = (),
        **config: Any,
    ) -> None:
        fields = {"interval": 4, "num_examples": 2, "group_size": 2, **config}
        self.config = EvalConfig(environment=environment("held-out", max_concurrent=3), **fields)
        self.rows: list[dict[str, Any]] = []
        self.failed: list[tuple[str, str, ErrorKind, str]] = []
        self.player, self.scorer = player, Scorer()
        self.served: list[int] = []
        self.evals = Evals(
            [self.config],
            EvalHorizon(
                attempt=1,
                seed=0,
                max_steps=max_steps,
                start_step=start_step,
                played={("held-out", version) for version in done},
                skipped={("held-out", version) for version in recorded_skips},
            ),
            player=player,
            generator=self.scorer,
            wait_served=self._wait,
            on_row=self._row,
            failures=FailureLimit(100),
        )

    async def _wait(self, version: int) -> None:
        self.served.append(version)

    async def _row(self, row: dict[str, Any], outcomes: list[EpisodeOutcome], failed: list[FailedEpisode]) -> None:
        self.rows.append(row)
        self.failed += [(one.outcome.episode, one.group, one.kind, one.error) for one in failed]

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Rig"]:
        task = asyncio.create_task(self.evals.run())
        try:
            async with asyncio.timeout(60):
                yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def scripted(episode: str, group: str, version: int) -> EpisodeOutcome:
    roles = [C, A, E, E]
    return outcome(episode, reward=float(episode[-1] == "0"), samples=[sample(roles, episode=episode)])


@pytest.mark.parametrize(
    ("version", "at_start", "expected"),
    [(0, True, True), (0, False, False), (1, True, False), (4, True, True), (10, True, True), (9, True, False)],
)
def test_when_an_eval_is_due(version: int, *, at_start: bool, expected: bool) -> None:
    config = EvalConfig(environment=environment(), interval=4, num_examples=1, group_size=1, at_start=at_start)
    assert due(config, version, 10) is expected


async def test_an_eval_by_hand() -> None:
    rig = Rig(ScriptedPlayer(script=scripted))
    async with rig.running():
        rig.evals.reached(0)
        assert rig.evals.pending == ["held-out"]
        await rig.evals.finished()
    (row,) = rig.rows
    assert row["reward"] == 0.5
    assert (row["step"], row["environment"], row["attempt"]) == (0, "held-out", 1)
    assert (row["episodes"], row["errors"], row["truncated"]) == (4, 0, 0)
    assert (row["pass@1"], row["pass@2"]) == (0.5, 1.0)
    assert (row["avg@2"], row["avg@2/examples"], row["pass@2/examples"]) == (0.5, 2, 2)
    assert row["examples"] == [
        {"index": 0, "key": 0, "rewards": [1.0, 0.0], "errors": 0},
        {"index": 1, "key": 1, "rewards": [1.0, 0.0], "errors": 0},
    ]
    # Positions 2 and 3 are the environment's: -(2 + 3) over two tokens, in each of four episodes.
    assert (row["env_nll"], row["env_nll/tokens"], row["env_nll/errors"]) == (2.5, 8, 0)
    assert rig.player.most["held-out"] <= 3
    assert rig.evals.pending == []
    assert rig.evals.in_flight == 0


async def test_failed_episodes_are_counted_and_left_out() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        return outcome(episode, error=ErrorKind.ENV) if episode.endswith("t0-e1") else scripted(episode, group, version)

    rig = Rig(ScriptedPlayer(script=script))
    rig.scorer.broken = {1}
    async with rig.running():
        rig.evals.reached(0)
        await rig.evals.finished()
    (row,) = rig.rows
    assert row["reward"] == pytest.approx(2 / 3)
    assert (row["episodes"], row["errors"], row["errors/env"]) == (3, 1, 1)
    group = "a1-eval-held-out-v0-t0"
    assert rig.failed == [(f"{group}-e1", group, ErrorKind.ENV, "scripted env")]
    assert row["pass@1"] == 0.75  # means of the examples: 1 of 1, and 1 of 2
    assert row["pass@2"] == 1.0  # of the example that has two
    assert (row["pass@1/examples"], row["pass@2/examples"]) == (2, 1)
    assert (row["avg@2"], row["avg@2/examples"]) == (0.75, 2)  # both examples weigh alike; three episodes make 2/3
    assert (row["env_nll/tokens"], row["env_nll/errors"]) == (4, 1)


async def test_an_eval_whose_episodes_all_fail_still_leaves_a_row() -> None:
    script = lambda episode, group, version: outcome(episode, error=ErrorKind.TIMEOUT)  # noqa: E731
    rig = Rig(ScriptedPlayer(script=script))
    async with rig.running():
        rig.evals.reached(0)
        await rig.evals.finished()
    (row,) = rig.rows
    assert (row["reward"], row["env_nll"], row["episodes"], row["errors"]) == (None, None, 0, 4)
    assert (row["avg@2"], row["avg@2/examples"]) == (None, 0)


async def test_evals_of_one_environment_follow_each_other() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), num_examples=99)
    async with rig.running():
        for version in range(11):
            rig.evals.reached(version)
        rig.evals.reached(8)
        await rig.evals.finished()
    assert [row["step"] for row in rig.rows] == rig.served == [0, 4, 8, 10]
    assert len(rig.rows[0]["examples"]) == rig.player.num


async def test_recorded_evals_are_not_repeated_and_missed_ones_are_made_up_for() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), start_step=4, done=[0, 4])
    async with rig.running():
        rig.evals.reached(4)
        await rig.evals.finished()
        rig.evals.reached(9)  # version 8 was passed over while nobody listened
        await rig.evals.finished()
    assert [row["step"] for row in rig.rows] == [8]
    assert rig.evals.skipped == {"held-out": 0}


async def test_evals_below_the_step_that_a_gang_resumed_from_are_told_as_skipped() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), start_step=8, done=[4])
    assert rig.evals.pending == []
    async with rig.running():
        rig.evals.reached(8)
        await rig.evals.finished()
    lost, played = rig.rows
    reason = "no attempt has recorded it, and the run resumed from step 8"
    assert lost == {"environment": "held-out", "step": 0, "attempt": 1, "skipped": reason}
    assert (played["step"], "skipped" in played) == (8, False)
    assert rig.evals.skipped == {"held-out": 1}


async def test_an_eval_is_told_as_skipped_once_and_played_if_its_version_comes_again() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), start_step=8, done=[0], recorded_skips=[4])
    again = Rig(ScriptedPlayer(script=scripted), start_step=2, done=[0], recorded_skips=[4])
    async with rig.running(), again.running():
        await rig.evals.finished()
        again.evals.reached(4)
        await again.evals.finished()
    assert rig.rows == []
    assert rig.evals.skipped == {"held-out": 0}
    assert [(row["step"], "skipped" in row) for row in again.rows] == [(4, False)]


async def test_only_the_latest_eval_that_was_passed_over_is_played_and_the_others_are_told() -> None:
    rig = Rig(ScriptedPlayer(script=scripted))
    async with rig.running():
        rig.evals.reached(9)  # the orchestrator alone was down; versions 0, 4 and 8 were due
        rig.evals.reached(9)
        await rig.evals.finished()
    found = sorted((row["step"], row.get("skipped")) for row in rig.rows)
    reason = "the trainer was at version 9 when the orchestrator heard of it"
    assert found == [(0, reason), (4, reason), (8, None)]
    assert rig.evals.skipped == {"held-out": 2}


async def test_another_interval_last_step_and_sampling_hold_from_the_next_version_on() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), max_steps=10, done=[0])
    cooler = rig.config.environment.model_copy(update={"sampling": SamplingConfig(temperature=0.25)})
    async with rig.running():
        rig.evals.reached(4)
        await rig.evals.finished()
        rig.evals.adopt([rig.config.model_copy(update={"interval": 3, "environment": cooler})], 7)
        for version in (5, 6, 7):
            rig.evals.reached(version)
        await rig.evals.finished()
    assert [row["step"] for row in rig.rows] == [4, 6, 7]
    assert {episode.rpartition("-t")[0]: value for episode, value in rig.player.temperatures.items()} == {
        "a1-eval-held-out-v4": 1.0,
        "a1-eval-held-out-v6": 0.25,
        "a1-eval-held-out-v7": 0.25,
    }


async def test_the_eval_after_the_last_step_is_played_if_the_trainer_is_there_already() -> None:
    rig = Rig(ScriptedPlayer(script=scripted), max_steps=10, done=[0])
    async with rig.running():
        rig.evals.adopt([rig.config], 3)
        assert rig.evals.pending == []
        rig.evals.reached(3)
        rig.evals.adopt([rig.config], 10)
        rig.evals.reached(5)
        await rig.evals.finished()
        rig.evals.adopt([rig.config], 5)
        rig.evals.adopt([rig.config], 5)
        await rig.evals.finished()
    assert [row["step"] for row in rig.rows] == [3, 4, 5]


async def test_group_scored_examples_fall_as_a_whole() -> None:
    def script(episode: str, group: str, version: int) -> EpisodeOutcome:
        return outcome(episode, error=ErrorKind.ENV if episode.endswith("t0-e1") else None, reward=None)

    rig = Rig(ScriptedPlayer(script=script, scores=lambda outcomes: [1.0] * len(outcomes)))
    async with rig.running():
        rig.evals.reached(0)
        await rig.evals.finished()
    (row,) = rig.rows
    assert (row["reward"], row["episodes"], row["errors"]) == (1.0, 2, 2)
    assert [one[0][-5:] for one in rig.failed] == ["t0-e1", "t0-e0"]
    assert rig.failed[1][3] == "the group could not be scored: other episodes of it failed"


async def test_an_episode_without_any_reward_is_an_error() -> None:
    rig = Rig(ScriptedPlayer(script=lambda episode, group, version: outcome(episode, reward=None)))
    async with rig.running():
        rig.evals.reached(0)
        await eventually(lambda: rig.rows, "the row is there")
    assert (rig.rows[0]["episodes"], rig.rows[0]["errors/env"]) == (0, 4)
    assert {one[3] for one in rig.failed} == {"the episode ended without a reward"}
    assert len(rig.failed) == 4
