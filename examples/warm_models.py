"""Models of examples, built unless they are there: seeded weights, then a short supervised fit.

Each is cached in its folder, keyed by what it is made from.
"""

import argparse
import hashlib
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import yaml

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.terminal_policy import DemonstrationTokens
from echorl_trainer.seeded import SHAPES, write_seeded_model
from examples.quickstart.warm_start import fit

Batches = list[list[DemonstrationTokens]]


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


def build_unless_there(folder: Path, key: str, build: Callable[[], None]) -> None:
    """Build the model in ``folder`` unless it was made from the same."""
    stamp = folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == key:
        return
    started = time.monotonic()
    build()
    stamp.write_text(key)
    print(f"warm start: {folder} in {time.monotonic() - started:.0f} s")  # noqa: T201


def model_and_seed(manifest: Path) -> tuple[Path, int] | None:
    """The model that a manifest names, and its seed; None where the run itself will say what is wrong with it."""
    try:
        spec = yaml.safe_load(manifest.read_text())["spec"]
        return Path(spec["model"]["name"]), spec.get("seed", 42)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every command that prepares a model takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="folder to build instead of the manifest's")
    return parser


def main(description: str | None, model: Path, key_of: Callable[[int], str], build: Callable[[Path, int], None]) -> int:
    """Command line of an example with one model; manifests of other models are left alone."""
    options = arguments(description).parse_args()
    if (asked := model_and_seed(options.manifest)) is not None and asked[0] == model:
        folder, seed = options.model or model, asked[1]
        build_unless_there(folder, key_of(seed), lambda: build(folder, seed))
    return 0
