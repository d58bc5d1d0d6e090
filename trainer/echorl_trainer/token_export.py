"""What a step trained, token by token, as files: ``RUN/tokens/attempt_N/step_S.rank_R.jsonl``.

Tensors of an exported step are kept on the device and brought over after the update, so other steps pay nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoTokenizer

from echorl_core.rundir import RunDirectory, write_file
from echorl_core.tokens import ROLES, Mode, TrainedSequence
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_trainer.batches import ScoredBatch
from echorl_trainer.losses import LossOutput
from echorl_trainer.model import TokenScores

log = structlog.get_logger()

MAX_TOKENS = 200_000
"""The most tokens of one rank and step; whole sequences beyond it are left out."""

Decode = Callable[[list[int]], list[str]]


@dataclass(frozen=True)
class _Kept:
    micro: MicroBatch
    rows: Tensor
    """int64 [K]."""
    columns: Tensor
    """float32 [5, K]: trainer's logprobs, entropy, the advantage that the loss used, whether its low and its high test
    dropped the gain (NaN: it has no such test)."""


class TokenExport:
    """Exports every ``every_steps`` steps, and the run's last one."""

    def __init__(
        self,
        run: RunDirectory,
        every_steps: int,
        decode: Decode | None = None,
        max_tokens: int = MAX_TOKENS,
        *,
        mode: Mode,
    ) -> None:
        """``decode``: texts of tokens, each on its own; None: files have no texts. ``mode``: of the run."""
        self._run = run
        self._every_steps = every_steps
        self._decode = decode
        self._max_tokens = max_tokens
        self._mode: Mode = mode
        self._kept: list[_Kept] = []

    def due(self, batch: RankBatch) -> bool:
        """Whether the step of ``batch`` is exported."""
        return batch.last or batch.step % self._every_steps == 0

    def add(
        self,
        batch: RankBatch,
        micro: MicroBatch,
        scored: ScoredBatch,
        scores: TokenScores,
        outputs: dict[str, LossOutput],
    ) -> None:
        """Keep one micro-batch of a due step; waits for nothing."""
        if not self.due(batch) or sum(len(kept.micro.token_ids) for kept in self._kept) >= self._max_tokens:
            return
        tests = outputs["rl"].metrics if "rl" in outputs else {}
        nothing = torch.full_like(scores.entropy, torch.nan)
        # Distillation has no advantages in its batches: its loss makes them.
        used = -tests["teacher_kl"] if "teacher_kl" in tests else scored.advantages
        dropped = [tests.get(name, nothing) for name in ("dropped_low", "dropped_high")]
        columns = torch.stack([scores.logprobs.detach(), scores.entropy, used, *dropped]).detach()
        self._kept.append(_Kept(micro, scored.tokens.rows, columns))

    def write(self, batch: RankBatch) -> Path | None:
        """Write what was kept of the step and return the file; None: the step is not due, or the disk refused it."""
        if not self.due(batch):
            return None
        kept, self._kept = self._kept, []
        sequences = [sequence for one in kept for sequence in _sequences(batch, one, self._mode, self._decode)]
        trained = sum(int(_trained(micro, batch).sum()) for micro in batch.micro_batches)
        sequences = _within(sequences, self._max_tokens)
        path = self._run.exported_tokens(batch.attempt, batch.step, batch.rank)
        try:
            lines = b"".join(msgspec.json.encode(sequence) + b"\n" for sequence in sequences)
            write_file(path, lines, within=self._run.root)
        except OSError as error:
            log.error("tokens could not be exported; training goes on", file=str(path), error=str(error))
            return None
        log.info("tokens exported", file=str(path), sequences=len(sequences), left_out=trained - len(sequences))
        return path


def tokenizer_of(model: Path) -> Decode | None:
    """How the model's tokenizer writes single tokens; None, and a warning, if its folder has none that loads."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        log.warning("exported tokens have no texts: no tokenizer", model=str(model), error=str(error))
        return None

    def decode(token_ids: list[int]) -> list[str]:
        return [str(tokenizer.decode([token_id])) for token_id in token_ids]

    return decode


def _within(sequences: list[TrainedSequence], max_tokens: int) -> list[TrainedSequence]:
    """Those from the start that have ``max_tokens`` tokens together, and always the first."""
    total = np.cumsum([len(sequence.token_ids) for sequence in sequences])
    return [sequence for index, sequence in enumerate(sequences) if index == 0 or total[index] <= max_tokens]


def _weights(micro: MicroBatch, batch: RankBatch) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The weights that counted: 0 in a component that the step skipped."""
    rl, ce = (batch.denominators.get(name, 0) > 0 for name in ("rl", "ce"))
    return micro.rl_weight * np.float32(rl), micro.ce_weight * np.float32(ce)


def _trained(micro: MicroBatch, batch: RankBatch) -> NDArray[np.bool_]:
    """Which documents have a weight; bool [S]."""
    rl, ce = _weights(micro, batch)
    starts = np.concatenate([[0], np.cumsum(micro.lengths[:-1], dtype=np.int64)])
    return np.add.reduceat(((rl != 0) | (ce != 0)).astype(np.int64), starts) > 0


def _sequences(batch: RankBatch, kept: _Kept, mode: Mode, decode: Decode | None) -> list[TrainedSequence]:
    micro = kept.micro
    rl, ce = _weights(micro, batch)
    scores = np.full((5, len(micro.token_ids)), np.nan, np.float32)
    scores[:, kept.rows.cpu().numpy()] = kept.columns.cpu().numpy()
    engine = np.where(micro.role == TokenRole.ACTION, micro.logprobs, np.nan)
    with np.errstate(over="ignore"):
        ratio = np.where(rl != 0, np.exp(scores[0] - micro.logprobs), np.nan)
    advantage, low, high = np.where(rl != 0, scores[2:], np.nan)
    teacher = None if micro.ref_logprobs is None else np.where(rl != 0, micro.ref_logprobs, np.nan)
    counted = (micro.ce_weight != 0 if micro.ce_mask is None else micro.ce_mask) & (batch.denominators.get("ce", 0) > 0)
    ends = np.cumsum(micro.lengths, dtype=np.int64)
    found = []
    for index in np.flatnonzero(_trained(micro, batch)).tolist():
        part = slice(int(ends[index] - micro.lengths[index]), int(ends[index]))
        token_ids = micro.token_ids[part].tolist()
        found.append(
            TrainedSequence(
                run_uid=batch.run_uid,
                attempt=batch.attempt,
                step=batch.step,
                rank=batch.rank,
                sample_id=micro.sample_ids[index],
                environment=micro.environments[index],
                reward=micro.rewards[index] if micro.rewards else None,
                mode=mode,
                denominators=batch.denominators,
                token_ids=token_ids,
                texts=None if decode is None else decode(token_ids),
                role=[ROLES[role] for role in micro.role[part].tolist()],
                tool=_tools(micro, part),
                engine_logprobs=engine[part].tolist(),
                trainer_logprobs=scores[0, part].tolist(),
                teacher_logprobs=None if teacher is None else teacher[part].tolist(),
                entropy=scores[1, part].tolist(),
                ratio=ratio[part].tolist(),
                is_masked=_flags(low[part] + high[part]),
                is_masked_low=_flags(low[part]),
                is_masked_high=_flags(high[part]),
                advantage=advantage[part].tolist(),
                rl_weight=rl[part].tolist(),
                ce_weight=ce[part].tolist(),
                ce_mask=counted[part].tolist(),
                version_low=micro.version_low[part].tolist(),
                version_high=micro.version_high[part].tolist(),
                temperature=micro.temperature[part].tolist(),
            )
        )
    return found


def _flags(values: NDArray[np.float32]) -> list[bool | None]:
    return [None if math.isnan(value) else value > 0 for value in values.tolist()]


def _tools(micro: MicroBatch, part: slice) -> list[str | None] | None:
    if micro.tool is None:
        return None
    # The last one is what index -1 takes.
    names = [*micro.tool_names, None]
    return [names[index] for index in micro.tool[part].tolist()]
