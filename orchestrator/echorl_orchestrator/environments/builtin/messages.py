"""``builtin:messages``: whole conversations from a JSONL file, for mode sft.

One object a line: ``messages`` (OpenAI chat messages, tool calls and tool outputs included); ``tools`` (definitions,
where there are any), ``key`` (identity, an int or a text; default: the line's number) and ``reward`` (a number) may
stand beside it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from echorl_orchestrator.chat.conversations import conversation_of
from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.environments.builtin.parts.data_path import found
from echorl_orchestrator.environments.contract import Environment
from echorl_orchestrator.failures import BadInputError

KIND = "given"


class MessagesArgs(BaseModel):
    """Arguments of ``builtin:messages``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: str
    """JSONL file. A relative path is looked for where modules are (``spec.code``), then in the working directory."""


class Messages(Sequence[dict[str, Any]]):
    """The conversations of a file, in its order; every line is checked when it is read in."""

    def __init__(self, path: Path) -> None:
        self._rows: list[dict[str, Any]] = []
        seen: dict[int | str, int] = {}
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    self._rows.append(_task(line, f"{path}:{number}", number))
                    key = self._rows[-1]["key"]
                    if (before := seen.setdefault(key, number)) != number:
                        raise BadInputError(f"{path}:{number}: key: found {key!r}, which line {before} has already")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]


def _task(line: str, where: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
        task = conversation_of(row)
    except (ValueError, MessageError) as error:
        raise BadInputError(f"{where}: {error}") from None
    key = row.get("key", number)
    if isinstance(key, bool) or not isinstance(key, (int, str)):
        raise BadInputError(f"{where}: key: found {key!r}, accepted is an int or a str")
    return {"key": key, **task}


def build(**args: Any) -> Environment:
    """The environment that ``builtin:messages`` names."""
    return Environment(
        Messages(found(MessagesArgs.model_validate(args).path, "builtin:messages: args.path")), given=True
    )
