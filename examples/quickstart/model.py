"""Models of the examples with a file tree: seeded weights, for most then a short supervised fit on scripts."""

import json
import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from echorl_orchestrator.codec.compact import CompactCodec
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
from examples.quickstart import warm_start
from examples.quickstart.baselines import entropy_floor_nats, unigram_nats
from examples.warm_models import Batches, Recipe, batched, build_fitted, digest_of

STEPS, PER_STEP, LR = 160, 32, 2e-3
HELD_OUT = 256


def build(folder: Path, seed: int, *, mix: Mapping[Script, float] = MIX) -> None:
    """Write the model, fitted on a mix of scripts if there is one, and then ``baselines.json`` beside it."""
    if not mix:
        shutil.rmtree(folder, ignore_errors=True)
        write_seeded_model(folder, SHAPES["tiny"], seed=seed, dtype="float32")
        return
    train: list[tuple[Demonstration, DemonstrationTokens]] = []
    held: list[tuple[Demonstration, DemonstrationTokens]] = []

    def batches_of(codec: CompactCodec) -> Batches:
        of_train = TerminalArgs(split="train", num_tasks=2048, seed=seed)
        of_test = TerminalArgs(split="test", num_tasks=HELD_OUT, seed=seed)
        train.extend(_demonstrations(of_train, codec, STEPS * PER_STEP, seed, mix))
        held.extend(_demonstrations(of_test, codec, HELD_OUT, seed + 1, mix))
        tokens = [ids for _, ids in train]
        random.Random(seed).shuffle(tokens)
        return batched(tokens, PER_STEP)

    def add(unfinished: Path) -> None:
        vocabulary = json.loads((unfinished / "config.json").read_text())["vocab_size"]
        held_tokens = [ids for _, ids in held]
        baselines = {
            "unigram_nats": unigram_nats([ids for _, ids in train], held_tokens, vocabulary),
            "entropy_floor_nats": entropy_floor_nats([played for played, _ in held], held_tokens, TerminalArgs()),
            "demonstrations_reward": sum(played.reward for played, _ in train) / len(train),
        }
        (unfinished / "baselines.json").write_text(json.dumps(baselines, indent=2) + "\n")

    build_fitted(folder, batches_of, lr=LR, seed=seed, add=add)


def _demonstrations(
    args: TerminalArgs, codec: CompactCodec, count: int, seed: int, mix: Mapping[Script, float]
) -> list[tuple[Demonstration, DemonstrationTokens]]:
    played = demonstrations(TerminalTasks(args), args, seed=seed, count=count, mix=mix)
    return [(one, demonstration_tokens(codec, one.messages, args)) for one in played]


def key_of(seed: int, *, mix: Mapping[Script, float]) -> str:
    """What the model is made from."""
    settings = f"{seed} {STEPS} {PER_STEP} {LR} {sorted(mix.items())}"
    return digest_of(settings, [terminal_policy, terminal_tasks, seeded, warm_start, __file__])


def _recipe(mix: Mapping[Script, float]) -> Recipe:
    return Recipe(partial(key_of, mix=mix), partial(build, mix=mix))


MODELS = {
    Path("runs/models/quickstart"): _recipe(MIX),
    Path("runs/models/teacher"): _recipe({"find": 1.0}),
    Path("runs/models/seeded"): _recipe({}),
}
