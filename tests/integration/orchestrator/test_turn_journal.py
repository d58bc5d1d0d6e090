"""Turns of a killed orchestrator are told again by the next: the very tokens, once, where prompts are the same."""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

from echorl_core.config import CheckpointConfig, ModelConfig, SamplingConfig
from echorl_core.names import ExitCode
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.engines.journal.parts import KeptTurn, TurnKey, kept_turns
from echorl_orchestrator.engines.journal.segments import Segments
from echorl_testing.engines.fake_engine import FakeEngine
from echorl_testing.orchestrator.orchestrator_run import IDENTITY, Run, check_batches, environment
from echorl_testing.trainer.scripted_trainer import ScriptedTrainer
from echorl_testing.waiting import until

SUPPORT = str(Path(__file__).parents[2] / "support")
STOP = 258
"""``<|im_end|>``, which also ends each message of a prompt."""
LIMIT, RECEIVED, INTERVAL, WRITTEN = 80, 70, 64, 65
"""Tokens of a second turn; those before its stream stands still; of an event; whole events and the first one."""
EPISODES = 8
"""In flight at once: two batches of four."""


def configure(run: Run, engine: FakeEngine, mood: Path) -> None:
    """Two turns an episode, the second of which stands still at every engine until ``engine.breaks`` is empty."""
    chance = random.Random(3)

    def sampled(prefix: list[int]) -> int:
        first = prefix.count(STOP) == 1
        begun = len(prefix) - 1 - max(place for place, token in enumerate(prefix) if token == STOP)
        return STOP if first and begun > 20 + chance.randrange(20) else chance.randrange(64, 90)

    engine.next_token = sampled  # type: ignore[assignment]
    engine.breaks = [(RECEIVED, "still")] * 1000
    engine.interval = INTERVAL  # what is asked for follows the pace that an orchestrator saw
    mood.write_text("go on\ngo on")
    talk = environment(
        "talk",
        type="import:echorl_testing.orchestrator.talking_environment:moody",
        args={"file": str(mood)},
        sampling=SamplingConfig(max_completion_tokens=LIMIT),
    )
    path = run.defaults["model"].path
    run.configure(
        turn_journal=True,
        train=[talk],
        evals=[],
        max_steps=2,
        python_path=[SUPPORT],
        checkpoint=CheckpointConfig(interval=1, keep_last=1),
        model=ModelConfig(path=path, dtype="float32", max_model_len=512, renderer="compact"),
        batch={"seq_len": 512},
    )


def journal(run: Run) -> dict[TurnKey, list[KeptTurn]]:
    return kept_turns(Segments(run.directory, IDENTITY).read())


def second_turns(run: Run) -> list[list[int]]:
    """Tokens of each episode's turns behind its first."""
    return [[turn.tokens for turn in turns][1:] for turns in journal(run).values()]


async def killed(run: Run) -> dict[TurnKey, list[KeptTurn]]:
    """What stands in the journal of an orchestrator that was killed in the middle of every second turn."""
    async with run.orchestrator() as process:
        await until(lambda: second_turns(run) == [[WRITTEN]] * EPISODES)
        process.kill()
        await process.wait()
    return journal(run)


def trained(trainer: ScriptedTrainer) -> list[tuple[bytes, np.ndarray, np.ndarray]]:
    """Ids, logprobs and lowest versions of the sampled tokens of every micro-batch, in order."""
    found = []
    for batch in trainer.batches.values():
        for micro in batch.micro_batches:
            mask = micro.role == TokenRole.ACTION
            ids = micro.token_ids[mask].astype(np.int32).tobytes()
            found.append((ids, micro.logprobs[mask], micro.version_low[mask]))
    return found


def ids_of(turn: KeptTurn) -> bytes:
    return b"".join(np.array(segment.token_ids, np.int32).tobytes() for segment in turn.segments())


@pytest.mark.faults
async def test_turns_of_a_killed_orchestrator_are_trained_as_they_were_sampled_where_prompts_are_the_same(
    run: Run, engine: FakeEngine, tmp_path: Path
) -> None:
    configure(run, engine, tmp_path / "mood")
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    kept = await killed(run)
    assert len({key[:2] for key in kept}) == EPISODES // 2
    asked, engine.breaks = len(engine.bodies("generate")), []
    (tmp_path / "mood").write_text("go on\nno, this")
    async with run.orchestrator() as process:
        await trainer.held.wait()
        shown = await run.metrics()
        trainer.go_on.set()
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 2)

    # No first turn was asked for again. Where the environment went on as before, the second one went on behind what
    # was written of it, for the tokens that were left; elsewhere it began.
    again = engine.bodies("generate")[asked:][:EPISODES]
    went_on = [body for body in again if body["sampling_params"]["max_tokens"] == LIMIT - WRITTEN]
    begun = [body for body in again if body["sampling_params"]["max_tokens"] == LIMIT]
    assert len(went_on) == len(begun) == EPISODES // 2
    assert {body["token_ids"].count(STOP) for body in again} == {3}
    told = [turn for key, turns in kept.items() for turn in (turns if key.place == 0 else turns[:1])]
    dropped = [turns[1] for key, turns in kept.items() if key.place == 1]
    open_ones = [turns[1] for key, turns in kept.items() if key.place == 0]
    assert sorted(body["token_ids"][-WRITTEN:] for body in went_on) == sorted(
        segment.token_ids for turn in open_ones for segment in turn.segments()
    )

    batches = trained(trainer)
    assert not any(ids_of(turn) in ids for turn in dropped for ids, _, _ in batches)
    for turn in told:
        ((batch, at),) = [(batch, at // 4) for batch in batches if (at := batch[0].find(ids_of(turn))) >= 0]
        here = slice(at, at + turn.tokens)
        assert batch[1][here].tolist() == [one for part in turn.segments() for one in part.logprobs]
        assert batch[2][here].tolist() == [0] * turn.tokens
    assert f"turn_journal_kept_tokens_total {float(sum(turn.tokens for turn in told))}" in shown
    assert f'turn_journal_dropped_tokens_total{{cause="prompt"}} {float(len(dropped) * WRITTEN)}' in shown
    assert not (run.directory.attempt(1) / "turns").exists()
