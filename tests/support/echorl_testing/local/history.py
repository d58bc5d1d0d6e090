"""What a run has in fact trained, read from its records and committed checkpoints alone."""

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from echorl_core import checkpoints
from echorl_core.arrays import unpack
from echorl_core.attempts import prepared_attempts
from echorl_core.checkpoints import NO_HISTORY, Committed, next_history
from echorl_core.config import TrainerConfig
from echorl_core.rundir import RunDirectory, step_name
from echorl_core.wire.batch import RankBatch
from echorl_orchestrator.batches.sealing import SEAL_NAME, Seal, digest, rank_file
from echorl_orchestrator.records.recorder import STEPS, read_rows
from echorl_testing.trainer.trainer_processes import Gang

_CHECKPOINT = re.compile(r"checkpoints/step_(\d+)")


def recordings(run: RunDirectory) -> list[Path]:
    """Folders of recorded batches, one for each attempt that sealed any, oldest attempt first."""
    return [
        folder for attempt, _ in prepared_attempts(run) if (folder := run.recorded_batch(attempt, 0).parent).is_dir()
    ]


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Lines of one kind in the supervisor's ``events.jsonl``."""
    return [line for line in read_rows(run.root / "events.jsonl") if line["event"] == kind]


def trained_seals(run: RunDirectory) -> dict[int, Seal]:
    """The batch that each step trained: that of the last attempt which sealed the step. Digests are computed anew."""
    found: dict[int, Seal] = {}
    for folder in recordings(run):
        for path in sorted(folder.glob("step_*")):
            seal = msgspec.json.decode((path / SEAL_NAME).read_bytes(), type=Seal)
            assert path.name == step_name(seal.step)
            found[seal.step] = msgspec.structs.replace(seal, digest=_digest(path, seal.num_ranks))
    return found


def _digest(folder: Path, num_ranks: int) -> str:
    batches = [unpack((folder / rank_file(rank)).read_bytes(), RankBatch) for rank in range(num_ranks)]
    [denominators] = {tuple(sorted(batch.denominators.items())) for batch in batches}
    return digest([batch.micro_batches for batch in batches], dict(denominators))


def assert_nothing_was_trained_twice(run: RunDirectory, last_step: int) -> None:
    """Every committed history is the chain over the recorded batches up to its step, and no sample stands in two."""
    seals = trained_seals(run)
    assert sorted(seals) == list(range(1, last_step + 1))
    chain = [NO_HISTORY]
    for step in range(1, last_step + 1):
        chain.append(next_history(chain[-1], seals[step].digest))
    found = committed(run)
    assert found[-1].step == last_step
    assert {one.step: one.manifest.history for one in found} == {one.step: chain[one.step] for one in found}
    samples = [name for seal in seals.values() for name in seal.sample_ids]
    assert len(samples) == len(set(samples))


def committed_steps(run: RunDirectory) -> list[int]:
    """Steps of committed checkpoints, ascending, damaged ones included."""
    return [one.step for one in checkpoints.committed(run)[0]]


def committed(run: RunDirectory) -> list[Committed]:
    """Committed checkpoints, each verified."""
    found, problems = checkpoints.committed(run)
    assert not problems
    for one in found:
        checkpoints.verify(one.folder, one.manifest)
    return found


def reported_steps(run: RunDirectory, attempt: int) -> list[int]:
    """Steps whose report an attempt's orchestrator recorded."""
    return [int(row["step"]) for row in read_rows(run.records(attempt) / STEPS)]


def redone(run: RunDirectory) -> dict[int, int]:
    """By attempt, from the second on: how many trained steps it had to train again.

    Steps that were trained while a checkpoint was being written count up to that checkpoint's step: they are what
    writing in the background costs.
    """
    lost = {}
    for (before, _), (attempt, prepared) in pairwise(prepared_attempts(run)):
        reached = max(reported_steps(run, before), default=prepared.resume_step)
        # Whole folders of checkpoints; of committed ones, temporary files are removed alone.
        begun = [int(found[1]) for path in prepared.removed if (found := _CHECKPOINT.fullmatch(path))]
        lost[attempt] = min(reached, *begun) - prepared.resume_step if begun else reached - prepared.resume_step
    return lost


def never_killed(
    run: RunDirectory,
    folder: Path,
    *,
    last_step: int,
    config: TrainerConfig | None = None,
    deadline_s: float = 240.0,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Step and state digest of a replay from the start model, and those of the last checkpoint as it is loaded.

    ``config``: the trainer's; None: as the newest attempt of a local run keeps it. ``deadline_s``: for all of the
    replay, which makes every step anew.
    """
    if config is None:
        kept = run.attempt(run.last_attempt()) / "configs" / "trainer.json"
        config = TrainerConfig.model_validate_json(kept.read_text())
    ranks = trained_seals(run)[last_step].num_ranks
    batches = [argument for one in recordings(run) for argument in ("--batches", str(one))]
    return asyncio.run(
        _both(
            Gang(folder / "replayed", config, None, ranks),
            Gang(folder / "loaded", config, None, ranks),
            batches,
            ["--checkpoint", str(run.checkpoint(last_step))],
            deadline_s,
        )
    )


async def _both(
    replay: Gang, load: Gang, batches: list[str], checkpoint: list[str], deadline_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    return await _result(replay, batches, deadline_s), await _result(load, checkpoint, deadline_s)


async def _result(gang: Gang, arguments: list[str], deadline_s: float) -> dict[str, Any]:
    out = gang.folder / "out"
    try:
        gang.start("echorl_trainer.replay", "--out", str(out), "--device", "cpu", *arguments)
        codes = await gang.ended(deadline_s)
    finally:
        await gang.stop()
    assert set(codes) == {0}, gang.log()
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result
