"""Scripted, imperfect play of ``builtin:terminal``, for warm starts and for held-out conversations to measure on.

The scripts know the tree, but most of them use it badly: 34 % find the answer; 20 % list, look into a file at random
and submit its word; 16 % submit blindly; 30 % find the right file, look into a wrong one and submit that one's word.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs
from echorl_orchestrator.environments.builtin.parts.terminal_world import TerminalEnv, tool_definitions
from echorl_orchestrator.environments.contract import Action

Script = Literal["find", "browse", "blind", "misread"]
MIX: dict[Script, float] = {"find": 0.34, "browse": 0.20, "blind": 0.16, "misread": 0.30}
Call = tuple[str, dict[str, str]]


@dataclass(frozen=True)
class Demonstration:
    """One scripted episode."""

    script: Script
    messages: list[dict[str, Any]]
    """The whole conversation; the last message is the submission."""
    reward: float


@dataclass(frozen=True)
class DemonstrationTokens:
    """A demonstration as T tokens."""

    ids: list[int]
    action: list[bool]
    """Tokens that a model would sample. Length T."""
    observation: list[bool]
    """Bodies of what the environment answers. Length T."""


def _word(task: Mapping[str, Any], path: str) -> str:
    line: str = task["files"][path].split("\n")[0]
    return line.split("=", 1)[1]


def _calls(script: Script, task: Mapping[str, Any], args: TerminalArgs, rng: random.Random) -> list[Call]:
    paths = sorted(task["files"])
    wanted = f"{task['question']}="
    target = next(path for path in paths if any(line.startswith(wanted) for line in task["files"][path].split("\n")))
    grep: Call = ("grep", {"pattern": task["question"]})
    if script == "blind":
        return [("submit", {"word": rng.choice(args.words)})]
    if script == "find":
        return [grep, ("cat", {"path": target}), ("submit", {"word": task["answer"]})]
    if script == "misread":
        wrong = rng.choice([path for path in paths if path != target] or paths)
        return [grep, ("cat", {"path": wrong}), ("submit", {"word": _word(task, wrong)})]
    folder = rng.choice(sorted({path.split("/")[0] for path in paths}))
    path = rng.choice([path for path in paths if path.startswith(f"{folder}/")])
    return [("ls", {}), ("ls", {"path": folder}), ("cat", {"path": path}), ("submit", {"word": _word(task, path)})]


def demonstrate(
    task: Mapping[str, Any], args: TerminalArgs, *, seed: int | str, mix: Mapping[Script, float] = MIX
) -> Demonstration:
    """Play ``task`` by a script drawn from ``mix``, in the real environment. The same seed plays the same way."""
    rng = random.Random(f"demonstration:{seed}")
    script = rng.choices(list(mix), weights=list(mix.values()))[0]
    env = TerminalEnv(args)
    step = env.reset(dict(task), seed=0, episode_id=f"demonstration-{seed}")
    messages = list(step.messages)
    for number, (name, arguments) in enumerate(_calls(script, task, args, rng)):
        call = {"id": f"call_{number}", "name": name, "arguments": arguments}
        function = {"name": name, "arguments": arguments}
        calls = [{"id": call["id"], "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        step = env.step(Action("", [call]))
        messages.extend(step.messages)
    return Demonstration(script, messages, step.reward or 0.0)


def demonstrations(
    tasks: Sequence[Mapping[str, Any]], args: TerminalArgs, *, seed: int, count: int, mix: Mapping[Script, float] = MIX
) -> Iterator[Demonstration]:
    """``count`` scripted episodes over ``tasks`` in turn."""
    for number in range(count):
        yield demonstrate(tasks[number % len(tasks)], args, seed=f"{seed}:{number}", mix=mix)


def demonstration_tokens(
    codec: CompactCodec, messages: Sequence[Mapping[str, Any]], args: TerminalArgs
) -> DemonstrationTokens:
    """The tokens of a conversation exactly as the gateway would have recorded them.

    Raises:
        ValueError: the conversation does not begin with a prompt and end with an action.
    """
    return conversation_tokens(codec, messages, tool_definitions(args.tools))


def conversation_tokens(
    codec: CompactCodec, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]]
) -> DemonstrationTokens:
    """The tokens of a conversation with any tools; see ``demonstration_tokens``."""
    turns = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0 or turns[-1] != len(messages) - 1:
        raise ValueError("a demonstration begins with a prompt and ends with an action")
    first = codec.render(messages[: turns[0]], tools, {})
    ids, action, observation = list(first.ids), [False] * len(first.ids), [False] * len(first.ids)
    for number, index in enumerate(turns):
        sampled = codec.action_ids(messages[index], tools)
        ids += sampled
        action += [True] * len(sampled)
        observation += [False] * len(sampled)
        if number + 1 < len(turns):
            answer = codec.extend([], sampled, messages[index + 1 : turns[number + 1]], tools, {})
            if answer is None:
                raise ValueError(f"messages after {index} hold a second assistant message")
            ids += answer.ids
            action += [False] * len(answer.ids)
            observation += answer.body.tolist()
    return DemonstrationTokens(ids, action, observation)
