"""How models of examples are made: seeded weights, then a short supervised fit."""

import hashlib
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.terminal_policy import DemonstrationTokens
from echorl_trainer.seeded import SHAPES, write_seeded_model
from examples.quickstart.warm_start import fit

Batches = list[list[DemonstrationTokens]]


@dataclass(frozen=True)
class Recipe:
    """How an example's model is made."""

    key_of: Callable[[int], str]
    """What the model of a seed is made from."""
    build: Callable[[Path, int], None]
    """Write the model of a seed into a folder."""


def build_fitted(
    folder: Path,
    batches_of: Callable[[CompactCodec], Batches],
    *,
    lr: float,
    seed: int,
    add: Callable[[Path], None] = lambda unfinished: None,
) -> None:
    """Write seeded weights fitted on the batches; ``add`` may write more beside them. No half a model is left."""
    base, unfinished = folder.with_name(folder.name + ".seeded"), folder.with_name(f".tmp-{folder.name}")
    for leftover in (base, unfinished):
        shutil.rmtree(leftover, ignore_errors=True)
    write_seeded_model(base, SHAPES["tiny"], seed=seed, dtype="float32")
    fit(base, unfinished, batches_of(CompactCodec(TextTokenizer(base, name=base.name))), lr=lr, seed=seed)
    add(unfinished)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    shutil.rmtree(base)


def batched(tokens: list[DemonstrationTokens], size: int) -> Batches:
    """The conversations in their order, ``size`` a batch."""
    return [tokens[start : start + size] for start in range(0, len(tokens), size)]


def digest_of(settings: str, sources: Iterable[ModuleType | str]) -> str:
    """What a model is made from: the settings, and the code that makes it, as modules or paths."""
    digest = hashlib.sha256(settings.encode())
    for source in (__file__, *sources):
        path = source.__file__ or "" if isinstance(source, ModuleType) else source
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()
