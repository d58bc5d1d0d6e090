"""How surprising observations of ``builtin:terminal`` must be to whoever knows how trees are drawn, and nothing else.

That is the floor of the cross-entropy on environment tokens: -ln P(observation | all that was seen), which for most
observations is the log of the number of equally likely alternatives. Summed over an episode and divided by its number
of observation tokens it stands beside a model's mean NLL.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs


class _Knowledge:
    """What a reader of the conversation knows of the tree."""

    def __init__(self, question: str, args: TerminalArgs) -> None:
        self._question = question
        self._args = args
        self._folders: dict[str, set[str]] = {}
        """Known names of each known folder."""
        self._keys: dict[str, str] = {}
        """Key of each file that was read."""
        self._target: str | None = None

    def _know(self, path: str) -> None:
        folder, name = path.split("/")
        self._folders.setdefault(folder, set()).add(name)

    def ls_root(self, names: Sequence[str]) -> float:
        """All folders."""
        known = len(self._folders)
        chance = math.comb(len(self._args.directories) - known, self._args.dirs - known)
        for name in names:
            self._folders.setdefault(name, set())
        return math.log(chance)

    def ls(self, folder: str, names: Sequence[str]) -> float:
        """All names of a folder that is there."""
        known = self._folders.setdefault(folder, set())
        alternatives = math.comb(len(self._args.file_names) - len(known), self._args.files - len(known))
        known.update(names)
        return math.log(alternatives)

    def grep(self, path: str) -> float:
        """The file of the key that was asked for."""
        if self._target is not None:
            return 0.0
        folder, name = path.split("/")
        candidates = self._args.dirs * self._args.files - len(self._keys)
        known = self._folders.get(folder)
        if known is not None and name in known:
            chance = 1.0 / candidates
        elif known is not None:
            hidden = self._args.files - len(known)
            chance = hidden / candidates / (len(self._args.file_names) - len(known))
        else:
            folders = self._args.dirs - len(self._folders)
            hidden = folders * self._args.files
            unknown = len(self._args.directories) - len(self._folders)
            chance = hidden / candidates / unknown / len(self._args.file_names)
        self._know(path)
        self._target = path
        return -math.log(chance)

    def cat(self, path: str, key: str) -> float:
        """A file that is there: its key, then its word."""
        if path in self._keys:
            return 0.0
        word = math.log(len(self._args.words))
        others = len(self._args.keys) - 1 - sum(1 for seen in self._keys.values() if seen != self._question)
        candidates = self._args.dirs * self._args.files - len(self._keys)
        if self._target is not None:
            surprise = 0.0 if path == self._target else math.log(others)
        elif key == self._question:
            surprise = math.log(candidates)
        else:
            surprise = math.log(others) - math.log((candidates - 1) / candidates)
        self._know(path)
        self._keys[path] = key
        if key == self._question:
            self._target = path
        return surprise + word


def _surprise(knowledge: _Knowledge, name: str, arguments: Mapping[str, Any], text: str, question: str) -> float:
    lines = text.split("\n")
    if name == "ls" and not arguments.get("path"):
        return knowledge.ls_root(lines)
    if name == "ls" and "no such directory" not in text:
        return knowledge.ls(arguments["path"], lines)
    if name == "grep" and arguments.get("pattern") == question and len(lines) == 1 and "/" in text:
        return knowledge.grep(text)
    if name == "cat" and text.startswith("# ") and len(lines) == 2:
        return knowledge.cat(arguments["path"], lines[1].split("=")[0])
    raise ValueError(f"{name} {dict(arguments)} -> {text!r}: only what the scripts do can be valued")


def observation_entropy_nats(messages: Sequence[Mapping[str, Any]], args: TerminalArgs) -> list[float]:
    """Surprisal in nats of each tool message of a scripted conversation, given all before it and that files exist.

    Raises:
        ValueError: files of several lines, or a command that no script gives.
    """
    if args.lines != 1:
        raise ValueError(f"lines is {args.lines}; the entropy is known for files of one line")
    question = messages[0]["content"].removesuffix("?")
    knowledge = _Knowledge(question, args)
    calls: dict[str, Mapping[str, Any]] = {}
    nats: list[float] = []
    for message in messages:
        calls.update({call["id"]: call["function"] for call in message.get("tool_calls", ())})
        if message["role"] == "tool":
            function = calls[message["tool_call_id"]]
            nats.append(_surprise(knowledge, function["name"], function["arguments"], message["content"], question))
    return nats
