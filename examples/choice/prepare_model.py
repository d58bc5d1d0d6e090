"""Builds the model of the multiple-choice examples unless it is there: seeded weights, then a short supervised fit.

    python -m examples.choice.prepare_model --manifest examples/debate.yaml

It learns the form of answers and arguments, with letters and digits drawn at random, and nothing of what is right; half
of the statements name their own side.
Manifests of other models are left alone.
"""

import argparse
import hashlib
import random
import shutil
import sys
import time
from pathlib import Path

import yaml

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin import consultancy
from echorl_orchestrator.environments.builtin.parts import choice_tasks, debate_prompts
from echorl_orchestrator.environments.builtin.parts.choice_tasks import LETTERS, ChoiceArgs, ChoiceTasks, shown
from echorl_orchestrator.environments.builtin.parts.terminal_policy import DemonstrationTokens
from echorl_trainer.seeded import SHAPES, write_seeded_model
from examples.quickstart.warm_start import fit

CHOICE_MODEL = Path("runs/models/choice")
STEPS, PER_STEP, LR = 60, 32, 2e-3
OWN_SIDE = 0.5
"""Share of statements that name their own side by more than chance: so that there is something to learn from."""


def conversations(seed: int) -> list[tuple[str, str]]:
    """Prompts and answers: a question with a random letter, and a side with a random statement, by turns."""
    rng = random.Random(f"choice-demonstrations:{seed}")
    tasks = ChoiceTasks(ChoiceArgs(num_tasks=STEPS * PER_STEP, seed=seed))
    consulting = consultancy.build(num_tasks=len(tasks), seed=seed, judge="rule", prompts="short")
    found = []
    for index, task in enumerate(tasks[place] for place in range(len(tasks))):
        if index % 2:
            found.append((shown(task), rng.choice(LETTERS[:2])))
            continue
        own = consulting.tasks[index]["side"]
        letter = own if rng.random() < OWN_SIDE else rng.choice(LETTERS[:2])
        found.append((_argument(consulting, index), f"{letter}{rng.choice([*task['answers'], ''])}"))
    return found


def _argument(consulting: consultancy.Environment, index: int) -> str:
    several = consulting.multi_agent
    if several is None:
        raise ValueError("consultancy is multi-agent")
    stage = several.env().reset(consulting.tasks[index], seed=0, episode_id="demonstration")
    asked: str = stage.messages[consultancy.CONSULTANT][-1]["content"]
    return asked


def tokens_of(codec: CompactCodec, prompt: str, answer: str) -> DemonstrationTokens:
    """One turn exactly as the gateway would record it."""
    asked = codec.render([{"role": "user", "content": prompt}], [], {}).ids
    said = codec.action_ids({"role": "assistant", "content": answer}, [])
    return DemonstrationTokens(
        ids=[*asked, *said],
        action=[False] * len(asked) + [True] * len(said),
        observation=[False] * (len(asked) + len(said)),
    )


def build(folder: Path, *, seed: int) -> None:
    """Write the warm-started model."""
    base = folder.with_name(folder.name + ".seeded")
    shutil.rmtree(base, ignore_errors=True)
    write_seeded_model(base, SHAPES["tiny"], seed=seed, dtype="float32")
    codec = CompactCodec(TextTokenizer(base, name=base.name))
    tokens = [tokens_of(codec, *one) for one in conversations(seed)]
    random.Random(seed).shuffle(tokens)
    batches = [tokens[start : start + PER_STEP] for start in range(0, len(tokens), PER_STEP)]
    unfinished = folder.with_name(f".tmp-{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    fit(base, unfinished, batches, lr=LR, seed=seed)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    shutil.rmtree(base)


def key_of(seed: int) -> str:
    """What the model is made from: the settings, and the code that makes it."""
    sources = [Path(module.__file__ or "") for module in (choice_tasks, consultancy, debate_prompts)]
    digest = hashlib.sha256(f"{seed} {STEPS} {PER_STEP} {LR} {OWN_SIDE}".encode())
    for source in [*sources, Path(__file__)]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="folder to build instead of the manifest's")
    options = parser.parse_args()
    try:
        spec = yaml.safe_load(options.manifest.read_text())["spec"]
        named, seed = Path(spec["model"]["name"]), spec.get("seed", 42)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return 0  # the run itself says what is wrong with the manifest
    folder = options.model or named
    if named != CHOICE_MODEL:
        return 0
    key, stamp = key_of(seed), folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == key:
        return 0
    started = time.monotonic()
    build(folder, seed=seed)
    stamp.write_text(key)
    print(f"warm start: {folder} in {time.monotonic() - started:.0f} s")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
