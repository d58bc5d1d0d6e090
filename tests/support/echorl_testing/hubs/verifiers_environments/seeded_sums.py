"""Sums, as environments with ``load_environment``: of one kind, or of several in a group.

single      one turn: say the sum
turns       say a number until it is the sum; "more" or "less" in between; 0.5 if that took several turns
tools       add the numbers with the tool ``add``, then say the sum

A kind's list says of each task what goes wrong in it: ``sandbox``, ``code`` and ``long`` after the first turn,
``reward`` and ``judge`` when it is scored, ``silence`` if nothing was said; ``overlong``: the first prompt is.
"""

import random

import verifiers as vf
from datasets import Dataset


def _rows(fails, seed):
    drawn = random.Random(seed)
    rows = []
    for failing in fails:
        a, b = drawn.randrange(5), drawn.randrange(5)
        more = " x" * 600 * (failing == "overlong")
        info = {"a": a, "b": b, "fails": failing}
        rows.append({"question": f"{a} + {b}?{more}", "answer": str(a + b), "info": info})
    return Dataset.from_list(rows)


def _said(completion):
    return [message["content"] for message in completion if message["role"] == "assistant"]


def right(completion, answer, info):
    """1.0 for the sum, and half of it where it took several turns to say it without tools."""
    if info["fails"] == "reward":
        raise ValueError("the scale broke")
    if info["fails"] == "judge":
        raise ConnectionRefusedError("no judge at http://judge:1")
    said = _said(completion)
    if info["fails"] == "silence" and not said:
        raise IndexError("nothing was said")
    return (1.0 if sum(map(bool, said)) <= 1 else 0.5) * (said[-1:] == [answer])


def length(completion):
    """Characters that were said."""
    return float(sum(len(said or "") for said in _said(completion)))


def best(completions, answers):
    """Compare the episodes of a group."""
    return [1.0] * len(completions)


class Turns(vf.MultiTurnEnv):
    """See the module."""

    @vf.stop
    async def is_found(self, state):
        """The sum was said."""
        return bool(state["trajectory"]) and _said(state["trajectory"][-1]["completion"])[-1] == state["answer"]

    async def env_response(self, messages, state, **_):
        """Compare, or fail."""
        if state["info"]["fails"] == "sandbox":
            raise vf.SandboxError("the sandbox is gone")
        if state["info"]["fails"] == "code":
            raise KeyError("board")
        if state["info"]["fails"] == "long":
            return [{"role": "user", "content": "more" * 600}]
        guess = int(messages[-1]["content"])
        state["guesses"] = [*state.get("guesses", []), guess]
        return [{"role": "user", "content": "more" if guess < int(state["answer"]) else "less"}]


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return int(left) + int(right)


def _made(kind, fails, eval_fails, functions):
    rubric = vf.Rubric(funcs=[*functions], weights=[float(function is not length) for function in functions])
    rubric.add_metric(length)
    shared = {"dataset": _rows(fails, 0), "rubric": rubric}
    if eval_fails:
        shared["eval_dataset"] = _rows(eval_fails, 1)
    if kind == "single":
        return vf.SingleTurnEnv(system_prompt="Add.", **shared)
    if kind == "tools":
        return vf.ToolEnv(tools=[add], system_prompt="Call add.", **shared)
    return Turns(system_prompt="Guess.", **shared)


def load_environment(kinds=None, rewards="right", eval_fails=(), refuses=""):
    """Environments of ``kinds``, by what fails in their tasks."""
    if refuses:
        raise RuntimeError(refuses)
    functions = {"right": [right], "group": [right, best], "none": []}[rewards]
    made = [_made(kind, fails, eval_fails, functions) for kind, fails in (kinds or {"single": [""]}).items()]
    return made[0] if len(made) == 1 else vf.EnvGroup(made)
