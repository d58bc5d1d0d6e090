"""The model of the multiple-choice examples: seeded weights, then a short supervised fit.

It learns the form of answers and arguments, with letters and digits drawn at random, and nothing of what is right; half
of the statements name their own side.
"""

import random
from pathlib import Path

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.environments.builtin import consultancy
from echorl_orchestrator.environments.builtin.parts import choice_tasks, debate_prompts
from echorl_orchestrator.environments.builtin.parts.choice_tasks import LETTERS, ChoiceArgs, ChoiceTasks, shown
from echorl_orchestrator.environments.builtin.parts.terminal_policy import DemonstrationTokens
from echorl_orchestrator.environments.contract import Environment
from examples.warm_models import Batches, Recipe, batched, build_fitted, digest_of

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


def _argument(consulting: Environment, index: int) -> str:
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


def batches(codec: CompactCodec, seed: int) -> Batches:
    """The turns that the model is fitted on, in its order."""
    tokens = [tokens_of(codec, *turn) for turn in conversations(seed)]
    random.Random(seed).shuffle(tokens)
    return batched(tokens, PER_STEP)


def build(folder: Path, seed: int) -> None:
    """Write the warm-started model."""
    build_fitted(folder, lambda codec: batches(codec, seed), lr=LR, seed=seed)


def key_of(seed: int) -> str:
    """What the model is made from."""
    settings = f"{seed} {STEPS} {PER_STEP} {LR} {OWN_SIDE}"
    return digest_of(settings, [choice_tasks, consultancy, debate_prompts, __file__])


MODELS = {Path("runs/models/choice"): Recipe(key_of, build)}
