"""The model of the example ``swe``: seeded weights, then a short supervised fit.

It learns how the tools of the scripted agent are called, from conversations of which most end without a fix: RL is to
find out which those are.
"""

import random
from pathlib import Path
from typing import Any

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.environments.builtin.parts.swe import bugs, seeded
from echorl_orchestrator.environments.builtin.parts.swe.inside import scripted_agent
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, bug_of, seeded_rows
from echorl_orchestrator.environments.builtin.parts.terminal_policy import conversation_tokens
from examples.warm_models import Batches, Recipe, batched, build_fitted, digest_of

FAMILIES: list[bugs.Family] = ["order", "index"]
"""Five functions: each is seen in every other batch, so that twenty of them are enough to learn from."""
STEPS, PER_STEP, LR = 200, 32, 2e-3
RIGHT, BLIND = 0.4, 0.1
"""Shares of conversations with the fix, and with none; the others put a bug in the bug's place."""
TOOLS = [scripted_agent.TOOLS[name] for name in ("read", "replace", "submit")]


def _bugs(row: Row) -> list[str]:
    """What the function may return by its table, wrong and in the words of this row."""
    head, _, _ = row.files[bug_of(row).path].decode().removeprefix("def ").partition("):")
    name, _, arguments = head.partition("(")
    names = arguments.split(", ")
    function = next(one for one in bugs.FUNCTIONS if one.name == name)
    return [f"    return {seeded.named(wrong, (names[0], names[-1]))}" for _, wrong in function.wrong]


def conversation(row: Row, rng: random.Random) -> list[dict[str, Any]]:
    """What the scripted agent and a model might say to one another about ``row``."""
    bug = bug_of(row)
    drawn = rng.random()
    text = bug.right if drawn < RIGHT else rng.choice(_bugs(row))
    source = row.files[bug.path].decode().splitlines()
    shown = "\n".join(f"{number} {line}" for number, line in enumerate(source, 1))
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("read", {"path": bug.path}, shown),
        ("replace", {"path": bug.path, "line": bug.line, "text": text}, "ok"),
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": row.statement}]
    for number, (name, arguments, answer) in enumerate([] if drawn > 1 - BLIND else steps):
        messages += [_call(number, name, arguments), {"role": "tool", "tool_call_id": f"c{number}", "content": answer}]
    return [*messages, _call(len(messages), "submit", {})]


def _call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


def batches(codec: CompactCodec, args: SeededArgs, seed: int) -> Batches:
    """The conversations that the model is fitted on, in its order."""
    rng = random.Random(f"swe-demonstrations:{seed}")
    rows = seeded_rows(args)
    talks = [conversation(rng.choice(rows), rng) for _ in range(STEPS * PER_STEP)]
    return batched([conversation_tokens(codec, talk, TOOLS) for talk in talks], PER_STEP)


def build(folder: Path, seed: int) -> None:
    """Write the warm-started model."""
    rows = SeededArgs(num_tasks=256, functions=1, families=FAMILIES, seed=seed)
    build_fitted(folder, lambda codec: batches(codec, rows, seed), lr=LR, seed=seed)


def key_of(seed: int) -> str:
    """What the model is made from."""
    settings = f"{seed} {FAMILIES} {STEPS} {PER_STEP} {LR} {RIGHT} {BLIND}"
    return digest_of(settings, [bugs, seeded, scripted_agent, __file__])


MODELS = {Path("runs/models/swe"): Recipe(key_of, build)}
