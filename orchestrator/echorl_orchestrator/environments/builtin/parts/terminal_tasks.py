"""Tasks of ``builtin:terminal``: small file trees of ``key=word`` lines, and a question for one key."""

import hashlib
import random
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

ToolName = Literal["ls", "cat", "grep", "write", "submit"]
_TEST_SHARE = 5  # one possible task in five belongs to the test split
_MAX_DRAWS = 10_000


class TerminalArgs(BaseModel):
    """Arguments of ``builtin:terminal``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: Literal["train", "test"] = "train"
    num_tasks: int = Field(default=512, ge=1)
    seed: int = 0
    """Of the order in which tasks come; which split a task belongs to does not depend on it."""
    directories: list[str] = ["bin", "etc", "lib", "opt", "usr", "var"]
    """Names that directories are drawn from."""
    dirs: int = Field(default=2, ge=1)
    """Directories of one tree."""
    file_names: list[str] = ["a", "b", "c", "d"]
    files: int = Field(default=2, ge=1)
    """Files of each directory."""
    keys: list[str] = ["port", "host", "user", "path", "mode", "size", "name", "zone"]
    words: list[str] = [
        *("apex", "bolt", "cane", "dusk", "echo", "fern", "gold", "hawk"),
        *("iris", "jade", "kite", "lime", "moss", "nova", "opal", "pine"),
    ]
    lines: int = Field(default=1, ge=1)
    """``key=word`` lines of each file; no key stands twice in a tree."""
    tools: list[ToolName] = ["ls", "cat", "grep", "submit"]
    max_bytes: int = Field(default=4096, ge=16)
    """Longest observation; what is cut off is said in a warning."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        needed = self.dirs * self.files * self.lines
        limits = [
            ("dirs", self.dirs, "directories", self.directories),
            ("files", self.files, "file_names", self.file_names),
            ("dirs * files * lines", needed, "keys", self.keys),
            ("2", 2, "words", self.words),
        ]
        for what, count, where, names in limits:
            if len(set(names)) != len(names) or any(not name or set(name) & set(" /=\n") for name in names):
                raise ValueError(f"{where} must be distinct, non-empty names without spaces, '/', '=' and line breaks")
            if count > len(names):
                raise ValueError(f"{what} is {count}, but {where} has only {len(names)} names")
        if "submit" not in self.tools or len(set(self.tools)) != len(self.tools):
            raise ValueError("tools must be distinct and hold 'submit'")
        return self


def make_task(args: TerminalArgs, rng: random.Random) -> dict[str, Any]:
    """One task of either split: ``files`` maps paths to texts, ``answer`` is the word that ``question`` has there."""
    folders = sorted(rng.sample(args.directories, args.dirs))
    paths = [f"{folder}/{name}" for folder in folders for name in sorted(rng.sample(args.file_names, args.files))]
    keys = iter(rng.sample(args.keys, len(paths) * args.lines))
    values: dict[str, str] = {}
    files: dict[str, str] = {}
    for path in paths:
        own = [next(keys) for _ in range(args.lines)]
        values.update({key: rng.choice(args.words) for key in own})
        files[path] = "\n".join(f"{key}={values[key]}" for key in own)
    question = rng.choice(sorted(values))
    return {
        "key": _digest(files, question).hex()[:16],
        "files": files,
        "question": question,
        "answer": values[question],
    }


def _digest(files: dict[str, str], question: str) -> bytes:
    return hashlib.sha256(repr((sorted(files.items()), question)).encode()).digest()


class TerminalTasks(Sequence[dict[str, Any]]):
    """Seeded, distinct tasks of one split. A tree with its question belongs to one split by its hash."""

    def __init__(self, args: TerminalArgs) -> None:
        rng = random.Random(f"terminal:{args.seed}")
        chosen: dict[str, dict[str, Any]] = {}
        misses = 0
        while len(chosen) < args.num_tasks:
            task = make_task(args, rng)
            is_test = int(task["key"][:8], 16) % _TEST_SHARE == 0
            misses = misses + 1 if is_test != (args.split == "test") or task["key"] in chosen else 0
            if misses > _MAX_DRAWS:
                raise ValueError(f"num_tasks is {args.num_tasks}, but only about {len(chosen)} different tasks exist")
            if misses == 0:
                chosen[task["key"]] = task
        self._tasks = list(chosen.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: Any) -> Any:
        return self._tasks[index]
