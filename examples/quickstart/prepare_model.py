"""Builds the model of an example's manifest unless it is there: seeded weights, for most then a short supervised fit.

    python -m examples.quickstart.prepare_model --manifest examples/quickstart.yaml

Manifests of other models are left alone. The result is cached in the model's folder, keyed by what it is made from.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import yaml

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts import terminal_policy, terminal_tasks
from echorl_orchestrator.environments.builtin.parts.terminal_policy import (
    MIX,
    Demonstration,
    DemonstrationTokens,
    Script,
    demonstration_tokens,
    demonstrations,
)
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs, TerminalTasks
from echorl_trainer import seeded
from echorl_trainer.seeded import SHAPES, write_seeded_model
from examples.quickstart.baselines import entropy_floor_nats, unigram_nats
from examples.quickstart.warm_start import fit

MODELS: Mapping[Path, Mapping[Script, float]] = {
    Path("runs/models/quickstart"): MIX,
    Path("runs/models/teacher"): {"find": 1.0},
    Path("runs/models/seeded"): {},
}
"""Scripts that each model is fitted on; none: seeded weights alone."""
STEPS, PER_STEP, LR = 160, 32, 2e-3
HELD_OUT = 256


def build(folder: Path, *, seed: int, mix: Mapping[Script, float] = MIX) -> None:
    """Write the model, and if it was fitted ``baselines.json`` beside it."""
    if not mix:
        shutil.rmtree(folder, ignore_errors=True)
        write_seeded_model(folder, SHAPES["tiny"], seed=seed, dtype="float32")
        return
    base = folder.with_name(folder.name + ".seeded")
    shutil.rmtree(base, ignore_errors=True)
    write_seeded_model(base, SHAPES["tiny"], seed=seed, dtype="float32")
    codec = CompactCodec(TextTokenizer(base, name=base.name))
    train = _demonstrations(TerminalArgs(split="train", num_tasks=2048, seed=seed), codec, STEPS * PER_STEP, seed, mix)
    held = _demonstrations(TerminalArgs(split="test", num_tasks=HELD_OUT, seed=seed), codec, HELD_OUT, seed + 1, mix)
    tokens = [one for _, one in train]
    random.Random(seed).shuffle(tokens)
    batches = [tokens[start : start + PER_STEP] for start in range(0, len(tokens), PER_STEP)]
    unfinished = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    fit(base, unfinished, batches, lr=LR, seed=seed)
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    held_tokens = [one for _, one in held]
    baselines = {
        "unigram_nats": unigram_nats(tokens, held_tokens, vocabulary),
        "entropy_floor_nats": entropy_floor_nats([one for one, _ in held], held_tokens, TerminalArgs()),
        "demonstrations_reward": sum(one.reward for one, _ in train) / len(train),
    }
    (unfinished / "baselines.json").write_text(json.dumps(baselines, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    shutil.rmtree(base)


def _demonstrations(
    args: TerminalArgs, codec: CompactCodec, count: int, seed: int, mix: Mapping[Script, float]
) -> list[tuple[Demonstration, DemonstrationTokens]]:
    played = demonstrations(TerminalTasks(args), args, seed=seed, count=count, mix=mix)
    return [(one, demonstration_tokens(codec, one.messages, args)) for one in played]


def key_of(seed: int, mix: Mapping[Script, float]) -> str:
    """What the model is made from: the settings, and the code that makes it."""
    sources = [Path(module.__file__ or "") for module in (terminal_policy, terminal_tasks, seeded)]
    sources += [Path(__file__), Path(__file__).with_name("warm_start.py")]
    digest = hashlib.sha256(f"{seed} {STEPS} {PER_STEP} {LR} {sorted(mix.items())}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--seed", type=int, help="default: the manifest's seed")
    parser.add_argument("--model", type=Path, help="folder to build instead of the quickstart's")
    options = parser.parse_args()
    try:
        spec = yaml.safe_load(options.manifest.read_text())["spec"]
        named, seed = Path(spec["model"]["name"]), options.seed if options.seed is not None else spec.get("seed", 42)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return 0  # the run itself says what is wrong with the manifest
    folder = options.model or named
    if options.model is None and named not in MODELS:
        return 0
    prepare(folder, seed=seed, mix=MODELS.get(named, MIX))
    return 0


def prepare(folder: Path, *, seed: int, mix: Mapping[Script, float]) -> None:
    """Build the model in ``folder`` unless it is there, made from the same."""
    key, stamp = key_of(seed, mix), folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == key:
        return
    started = time.monotonic()
    build(folder, seed=seed, mix=mix)
    stamp.write_text(key)
    print(f"warm start: {folder} in {time.monotonic() - started:.0f} s")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
