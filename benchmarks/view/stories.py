"""Episodes to look at, from a seed: an agent that mends a small program, with its branches, times, diff and tokens."""

import random
from collections.abc import Iterator
from typing import Any

from echorl_core.tokens import TrainedSequence

Json = dict[str, Any]

ENVIRONMENTS = ("coding", "search")
STOPS = ("terminated", "truncated", "maxTurns", "timeout")
_WORDS = ("cart", "invoice", "ledger", "parcel", "route", "shelf", "ticket", "voucher")
_FAULTS = ("drops the last item", "rounds before it adds", "counts an empty line", "forgets the leap day")


def _said(role: str, content: str, **more: object) -> Json:
    return {"role": role, "content": content, **more}


def _called(text: str, tool: str, arguments: str, number: int) -> Json:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
    return _said("assistant", text, reasoning_content="The test tells what it expects.", tool_calls=[call])


class Story:
    """One episode's texts. The same seed and number tell the same story."""

    def __init__(self, seed: int, number: int, *, solved: bool) -> None:
        drawn = random.Random(f"{seed}/{number}")
        self.solved, self.noun, self.fault = solved, drawn.choice(_WORDS), drawn.choice(_FAULTS)
        self.sides = number % 3 == 1
        """It has a second branch: a title that the agent asked for aside."""
        self.turns = list(self._turns(drawn))
        self._drawn = drawn

    @property
    def sampled(self) -> int:
        """Tokens that engines returned."""
        return sum(turn["tokens"] for turn in self.turns)

    @property
    def seconds(self) -> float:
        """Until its last turn ended."""
        return float(max(turn["end_s"] for turn in self.turns))

    @property
    def messages(self) -> list[Json]:
        """The main conversation."""
        file, noun = f"{self.noun}.py", self.noun
        told = "2 passed in 0.08s" if self.solved else f"FAILED test_{noun}.py::test_total - assert 6 == 9"
        return [
            _said("system", "You mend programs. Tools: read(path), edit(path, old, new), run(command)."),
            _said("user", f"`total()` in {file} {self.fault}. Mend it; the tests stand beside it."),
            _called("I read the file first.", "read", f'{{"path": "{file}"}}', 1),
            _said("tool", f"def total(items):\n    return sum(items[:-1])  # {noun}\n", tool_call_id="call_1"),
            _called(
                "The slice leaves one out.",
                "edit",
                f'{{"path": "{file}", "old": "items[:-1]", "new": "items"}}',
                2,
            ),
            _said("tool", "1 place changed", tool_call_id="call_2"),
            _called("Now the tests.", "run", '{"command": "pytest -q"}', 3),
            _said("tool", told, tool_call_id="call_3"),
            _said("assistant", f"`total()` now adds every {noun}." if self.solved else "I could not find it."),
        ]

    @property
    def conversations(self) -> list[Json]:
        """Every branch, where there are two."""
        if not self.sides:
            return []
        title = [
            _said("user", f"A title of at most five words for: {self.fault}"),
            _said("assistant", f"Mend the {self.noun}"),
        ]
        return [
            {"branch": 0, "unused": None, "messages": self.messages},
            {"branch": 1, "unused": "sideCall", "messages": title},
        ]

    def _turns(self, drawn: random.Random) -> Iterator[Json]:
        """When the engine and the tools worked; a call of those that failed was aborted."""
        now = 0.2
        for number in range(4):
            generated, tool = drawn.uniform(0.8, 3.0), drawn.uniform(0.1, 2.0) if number < 3 else 0.0
            turn = {"start_s": round(now, 3), "end_s": round(now + generated, 3), "tool_s": round(tool, 3)}
            yield {**turn, "tokens": int(generated * 40), "aborted": False, "branch": 0, "unused": None}
            if self.sides and number == 0:
                side = {"start_s": 0.3, "end_s": 1.1, "tool_s": 0.0, "tokens": 9, "aborted": False}
                yield {**side, "branch": 1, "unused": "sideCall"}
            now += generated + tool + 0.1
        if not self.solved:
            yield {"start_s": now, "end_s": now + 0.6, "tool_s": 0.0, "tokens": 0, "aborted": True}

    @property
    def info(self) -> Json:
        """What an environment may leave beside the messages: a diff, the sandbox's log, the grader's words."""
        file = f"{self.noun}.py"
        diff = (
            f"diff --git a/{file} b/{file}\n--- a/{file}\n+++ b/{file}\n@@ -1,2 +1,2 @@\n def total(items):\n"
            f"-    return sum(items[:-1])  # {self.noun}\n+    return sum(items)  # {self.noun}\n"
        )
        log = f"sandbox ready after 0.31 s\n$ pytest -q\n{self.messages[7]['content']}\n"
        grader = {"passed": 2 if self.solved else 1, "failed": 0 if self.solved else 1, "apply": "git apply"}
        return {"diff": diff, "sandbox_log": log, "grader": grader}

    def trained(self, place: Json, advantage: float) -> list[TrainedSequence]:
        """The branches as a step trained them; a title trains nothing and is not there."""
        texts, roles = [], []
        for message in self.messages:
            role = {"assistant": "action", "tool": "env_output"}.get(message["role"], "context")
            words = [f"{word} " for word in message["content"].split(" ")]
            texts += [f"<|{message['role']}|>", *words, "\n"]
            roles += ["context", *[role] * len(words), "context"]
        acts = [role == "action" for role in roles]
        heard = [role == "env_output" for role in roles]
        ratio = [round(self._drawn.lognormvariate(0, 0.12), 4) if one else None for one in acts]
        masked = [None if one is None else one > 1.2 for one in ratio]
        logprobs = [round(-self._drawn.expovariate(1.5), 4) if one else None for one in acts]
        return [
            TrainedSequence(
                **place,
                mode="rl",
                denominators={"rl": 512.0, "ce": 256.0},
                token_ids=list(range(len(texts))),
                texts=texts,
                role=roles,
                engine_logprobs=logprobs,
                trainer_logprobs=logprobs,
                entropy=[0.7 if one else None for one in acts],
                ratio=ratio,
                is_masked=masked,
                is_masked_low=[None if one is None else False for one in ratio],
                is_masked_high=masked,
                advantage=[advantage if one else None for one in acts],
                rl_weight=[1.0 if one else 0.0 for one in acts],
                ce_weight=[0.05 if one else 0.0 for one in heard],
                version_low=[3 if one else -1 for one in acts],
                version_high=[3 if one else -1 for one in acts],
                temperature=[1.0] * len(texts),
            )
        ]
