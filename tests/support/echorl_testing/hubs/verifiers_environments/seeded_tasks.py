"""Sums as a task set of ``verifiers.v1``: said at once, or with the tool ``add`` of a server that they share.

A task's kind is ``tool``, or what goes wrong: ``reward``: scoring raises; ``unrewarded``: nothing is scored;
``overlong``: the prompt is.
"""

import random

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    """A row."""

    answer: str
    kind: str


class Adder(vf.Toolset[vf.SharedToolsetConfig]):
    """Adds."""

    TOOL_PREFIX = None

    @vf.tool
    async def add(self, left: int, right: int) -> str:
        """Add two numbers."""
        return str(left + right)


class Sum(vf.Task[SumData]):
    """See the module."""

    @vf.metric
    async def turns(self, trace) -> float:
        """How often the model spoke."""
        return float(trace.num_turns)

    async def finalize(self, trace, runtime):
        """Score, unless told otherwise."""
        if self.data.kind == "reward":
            raise ValueError("the scale broke")
        if self.data.kind != "unrewarded":
            trace.record_reward("right", float(trace.last_reply == self.data.answer))


class SumsConfig(vf.TasksetConfig):
    """Kinds of the tasks."""

    kinds: list[str] = []


class Sums(vf.Taskset[Sum, SumsConfig]):
    """See the module."""

    @classmethod
    def toolsets(cls, config):
        """The server of the tool, where a task needs it."""
        return [Adder(vf.SharedToolsetConfig())] if "tool" in config.kinds else []

    def load(self):
        """Draw them."""
        drawn = random.Random(0)
        for index, kind in enumerate(self.config.kinds):
            a, b = drawn.randrange(5), drawn.randrange(5)
            system = "Call add." if kind == "tool" else "Add."
            prompt = f"{a} + {b}?" + " x" * 600 * (kind == "overlong")
            yield Sum(SumData(idx=index, prompt=prompt, system_prompt=system, answer=str(a + b), kind=kind))


if __name__ == "__main__":
    Adder.run()
