"""Trains on recorded batches, without orchestrator or engines.

    python -m echorl_trainer.replay --config trainer.json --batches RUN/record/attempt_1 --out DIR

A folder of batches holds ``step_000001/rank_0.bin`` and so on, as sealed or recorded. Of several folders the last one
that has a step counts, as a later attempt's record supersedes an earlier one's. Under torchrun's variables every rank
reads its own file, as do ranks that share packs; there must be as many ranks as the batches were packed for.
``DIR/steps.jsonl`` gets one line a step, ``DIR/result.json`` the last step and the digest of weights and optimizer
state: with a checkpoint and no batches, the digest of that checkpoint.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
from pydantic import ValidationError

from echorl_core import jsonsafe, logs, names
from echorl_core.arrays import unpack
from echorl_core.config import TrainerConfig
from echorl_core.names import ExitCode
from echorl_core.rundir import numbered, step_name, write_file
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_trainer.client import WrongBatch, check_batch
from echorl_trainer.ending import end
from echorl_trainer.learner import build_learner
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.state import TRAINER_FOLDER, Unreadable, save_state, state_digest, trainer_folder
from echorl_trainer.step import NonFinite

log = structlog.get_logger()

STEP_FOLDER = re.compile(r"^step_(\d+)$")
COLLECTIVE_TIMEOUT_S = 600.0


def _oldest_first(folders: Sequence[Path]) -> list[Path]:
    """Attempts by their number, as a shell that sorts ``attempt_11`` before ``attempt_8`` does not; others as given."""
    numbers = [re.fullmatch(r"attempt_(\d+)", folder.name) for folder in folders]
    if None in numbers:
        return list(folders)
    return sorted(folders, key=lambda folder: int(folder.name.removeprefix("attempt_")))


class RecordedBatches:
    """Batches of one rank from folders."""

    def __init__(self, folders: Sequence[Path], *, rank: int, num_ranks: int, last_step: int | None = None) -> None:
        """``last_step``: stop there even if there are more."""
        self._folders = _oldest_first(folders)
        self._rank, self._num_ranks = rank, num_ranks
        self._last_step = last_step
        self._run_uid: str | None = None

    def batch(self, step: int) -> RankBatch | StopNotice:
        """The recorded batch of ``step``; a stop notice when no folder has it or a later one.

        Raises:
            WrongBatch: a step is missing before a recorded one, or the file is no batch of this step, rank and run.
        """
        found = [folder / step_name(step) for folder in self._folders if (folder / step_name(step)).is_dir()]
        if self._last_step is not None and step > self._last_step:
            found = []
        elif not found:
            self._refuse_gap(step)
        if not found:
            return StopNotice(reason="finished", step=step - 1, checkpoint=False)
        path = found[-1] / f"rank_{self._rank}.bin"
        try:
            batch = unpack(path.read_bytes(), RankBatch)
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise WrongBatch(f"{path}: {error}") from error
        self._run_uid = self._run_uid or batch.run_uid
        try:
            check_batch(batch, run_uid=self._run_uid, step=step, rank=self._rank, num_ranks=self._num_ranks)
        except WrongBatch as error:
            raise WrongBatch(f"{path}: {error}") from error
        return batch

    def _refuse_gap(self, step: int) -> None:
        later = [there for folder in self._folders for there, _ in numbered(folder, STEP_FOLDER) if there > step]
        if later:
            raise WrongBatch(
                f"{', '.join(map(str, self._folders))}: step {step} is missing, step {min(later)} is there"
            )


def replay(
    config: TrainerConfig,
    batches: Sequence[Path],
    out: Path,
    *,
    ranks: Ranks,
    checkpoint: Path | None = None,
    last_step: int | None = None,
    save: bool = False,
) -> dict[str, Any]:
    """Train on what ``batches`` hold, from the start model or a checkpoint; collective.

    ``save`` also writes ``out/checkpoint/trainer``. Returns what ``result.json`` says: ``step``, ``digest``.

    Raises:
        Unreadable, WrongBatch, NonFinite, ValueError: from loading, reading and training.
    """
    learner = build_learner(config, ranks)
    step = learner.state.restore(trainer_folder(checkpoint)) if checkpoint is not None else 0
    source = RecordedBatches(batches, rank=ranks.data_rank, num_ranks=ranks.num_data_ranks, last_step=last_step)
    lines: list[str] = []
    while isinstance(batch := source.batch(step + 1), RankBatch):
        outcome = learner.runner.run(batch)
        step = batch.step
        lines.append(jsonsafe.dumps({"step": step, **msgspec.to_builtins(outcome)}))
        log.info("replayed", step=step, loss=outcome.metrics.get("loss/total"), tokens=outcome.packed_tokens)
    result = {"step": step, "digest": state_digest(learner.state.policy, learner.state.optimizer)}
    if save:
        save_state(learner.state, step, out / "checkpoint" / TRAINER_FOLDER)
    if ranks.rank == 0:
        write_file(out / "steps.jsonl", "".join(f"{line}\n" for line in lines).encode())
        write_file(out / "result.json", f"{jsonsafe.dumps(result, indent=2)}\n".encode())
    return result


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m echorl_trainer.replay", description="Train on recorded batches.")
    parser.add_argument("--config", type=Path, required=True, help="the trainer's config as JSON")
    parser.add_argument(
        "--batches", type=Path, action="extend", nargs="+", default=[], help="folders of step_*; repeatable"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for steps.jsonl and result.json")
    parser.add_argument("--checkpoint", type=Path, help="start here: a checkpoint's folder, or an attempt's in it")
    parser.add_argument("--steps", type=int, help="last step to train")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda where there is one")
    parser.add_argument("--save", action="store_true", help="also write the final state to OUT/checkpoint")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> ExitCode:
    """Replay what the command line says; the exit code."""
    options = parse(arguments)
    logs.configure(f"{names.Role.TRAINER}-replay", attempt=0, rank=int(os.environ.get("RANK", "0")))
    try:
        config = TrainerConfig.model_validate_json(options.config.read_text())
        sizes = {"context": config.context, "expert": config.expert}
        ranks = connect(config.replicate, options.device, COLLECTIVE_TIMEOUT_S, **sizes)
        result = replay(
            config,
            options.batches,
            options.out,
            ranks=ranks,
            checkpoint=options.checkpoint,
            last_step=options.steps,
            save=options.save,
        )
    except (OSError, ValidationError, ValueError, Unreadable, WrongBatch) as error:
        log.error("replay failed", error=str(error))
        return ExitCode.BAD_INPUT
    except NonFinite as error:
        log.error("replay failed", error=str(error))
        return ExitCode.NON_FINITE
    disconnect()
    log.info("replay done", **result)
    return ExitCode.OK


if __name__ == "__main__":
    end(main(sys.argv[1:]))
