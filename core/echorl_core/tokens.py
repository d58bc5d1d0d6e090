"""Trained sequences as the trainer exports them: one JSON object a line, each complete in itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from echorl_core.capped import lines_capped
from echorl_core.wire.batch import TokenRole

_LONGEST_LINE_BYTES = 256_000_000

SCHEMA = "echorl.tokens"
SCHEMA_VERSION = 2
"""1 did not tell the mode, and in mode opd not the advantage that the loss used."""

ROLES: tuple[str, ...] = tuple(role.name.lower() for role in TokenRole)
"""Names of ``TokenRole``, by its values."""

Numbers = list[float | None]
Mode = Literal["rl", "sft", "opd"]
Role = Literal["context", "action", "env_output", "warning"]


class NotTrainedTokens(ValueError):
    """A file is no token export, or one of another schema version; names file and line."""


class TrainedSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of T tokens as a step trained it. Every list has length T.

    Null stands where a value has no meaning: no engine drew the token, or the trainer did not score it.
    """

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    run_uid: str
    attempt: int
    step: int
    """Trained version ``step - 1`` into version ``step``."""
    rank: int
    sample_id: str
    """``<episode>/<branch>``."""
    environment: str
    reward: float | None = None
    """Of the episode; null where it has none, and in files of older releases."""
    mode: Mode
    """Mode of the run: policy gradient and ECHO, cross-entropy on targets alone, or on-policy distillation."""
    denominators: dict[str, float]
    """What the step divided each component's sum by."""
    token_ids: list[int]
    texts: list[str] | None = None
    """Each token decoded on its own; null without a tokenizer. Characters split over tokens show as U+FFFD."""
    role: list[Role]
    """Where the token came from; see ``TokenRole``."""
    tool: list[str | None] | None = None
    """Tool that wrote the token; null where no tool's output has a cross-entropy weight: batches leave it out."""
    engine_logprobs: Numbers
    """Natural log, as the engine reported it; of action tokens."""
    trainer_logprobs: Numbers
    """Natural log, under the weights that the step began with; of scored tokens."""
    teacher_logprobs: Numbers | None = None
    """Natural log, as the teacher reported it; of tokens with an RL weight. Null where no teacher was asked."""
    entropy: Numbers
    """Nats, of the distribution that the token was drawn from; of scored tokens."""
    ratio: Numbers
    """exp(trainer - engine logprob); of tokens with an RL weight."""
    is_masked: list[bool | None]
    """Whether the loss dropped or clipped the token's gain; null where the loss has no such test."""
    is_masked_low: list[bool | None]
    """Whether its test against too low a ratio or probability did."""
    is_masked_high: list[bool | None]
    """Whether its test against too high a one did."""
    advantage: Numbers
    """Advantage as the loss used it, of tokens with an RL weight; in mode opd the teacher's lead over the trainer."""
    rl_weight: list[float]
    """0: the token has no policy gradient."""
    ce_weight: list[float]
    """Weight of cross-entropy, ECHO's or in mode sft a target's; 0 if the token has none."""
    ce_mask: list[bool] | None = None
    """Whether cross-entropy counts the token in its denominator, also with a weight of 0 (alpha 0); null in files of
    older releases."""
    version_low: list[int]
    """Policy version that the engine held when the token's request was sent; -1 where no engine drew it."""
    version_high: list[int]
    """Policy version when the request returned."""
    temperature: list[float]

    @property
    def episode(self) -> str:
        """The episode's name."""
        return self.sample_id.rpartition("/")[0]


class _Head(msgspec.Struct, frozen=True):
    schema: str
    schema_version: int


def read_trained(path: Path, episode: str | None = None) -> Iterator[TrainedSequence]:
    """The sequences in a file, one by one.

    Args:
        path: a file that tokenExport wrote.
        episode: its sequences alone; lines that do not hold the name are not decoded. None: all.

    Raises:
        OSError: the file cannot be read.
        NotTrainedTokens: it is no token export, or of another schema version.
    """
    mark = b"" if episode is None else msgspec.json.encode(episode)[1:-1]
    for number, line in enumerate(lines_capped(path, _LONGEST_LINE_BYTES), start=1):
        if mark in line:
            sequence = _decoded(line, f"{path}: line {number}")
            if episode in {None, sequence.episode}:
                yield sequence


def _decoded(line: bytes, place: str) -> TrainedSequence:
    try:
        head = msgspec.json.decode(line, type=_Head)
    except msgspec.DecodeError:
        raise NotTrainedTokens(f"{place}: no trained sequence; accepted: a file that tokenExport wrote") from None
    if head.schema != SCHEMA:
        raise NotTrainedTokens(f"{place}: schema: found {head.schema!r}, accepted: {SCHEMA!r}")
    if head.schema_version != SCHEMA_VERSION:
        age = "a newer" if head.schema_version > SCHEMA_VERSION else "an older"
        found = f"found {head.schema_version}, accepted: {SCHEMA_VERSION}"
        raise NotTrainedTokens(f"{place}: schema_version: {found}; {age} release of EchoRL wrote it")
    try:
        sequence = msgspec.json.decode(line, type=TrainedSequence)
    except msgspec.DecodeError as error:
        raise NotTrainedTokens(f"{place}: {error}") from None
    lists = {name: value for name in sequence.__struct_fields__ if isinstance(value := getattr(sequence, name), list)}
    odd = [name for name, value in lists.items() if len(value) != len(sequence.token_ids)]
    if odd:
        found = f"found {len(lists[odd[0]])} values, accepted: {len(sequence.token_ids)}, as many as token_ids"
        raise NotTrainedTokens(f"{place}: {odd[0]}: {found}")
    return sequence
