"""Reads rows as data sets have them: SWE-bench, SWE-Gym and Scale-SWE, and Terminal-Bench-like ones.

A row is a JSON object. Its fields may stand at its top, in ``metadata`` or in ``metadata.remote_env_info``; the
innermost wins. Its grader is said by the fields that it has, in this order: ``eval_cmd``, ``f2p_script``,
``FAIL_TO_PASS``, ``test_command``.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echorl_orchestrator.environments.builtin.parts.swe import diffs
from echorl_orchestrator.environments.builtin.parts.swe.row import (
    LONGEST_COMMAND_BYTES,
    LONGEST_PATCH_BYTES,
    LONGEST_STATEMENT_BYTES,
    CommandGrader,
    Grader,
    Row,
    SuiteGrader,
)

_GRADERS = "eval_cmd, f2p_script, FAIL_TO_PASS with test_patch, or test_command with tests"
_F2P_SCRIPT = "/tmp/echorl/f2p_script.py"  # noqa: S108 - within a sandbox that nobody shares
_WORKDIR = "/testbed"


class RowError(ValueError):
    """A row that cannot be used; names the field, what was found, and what is accepted."""

    def __init__(self, field: str, found: str, accepted: str) -> None:
        super().__init__(f"{field}: found {found}, accepted is {accepted}")
        self.field = field


@dataclass(frozen=True)
class Defaults:
    """What rows have that do not say it themselves."""

    image: str | None = None
    """May hold ``{instance_id}``, and ``{docker_id}``: the same in lower case, with ``_1776_`` for ``__``."""
    workdir: str | None = None
    python: str = "python3"


class _Fields:
    """A row's fields by any of their names."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        metadata = row.get("metadata")
        inner = metadata if isinstance(metadata, Mapping) else {}
        innermost = inner.get("remote_env_info")
        self._all = {**row, **inner, **(innermost if isinstance(innermost, Mapping) else {})}

    def named(self, *names: str) -> tuple[str, Any]:
        """The first of ``names`` that has a value, with it; the first name and None if there is none."""
        for name in names:
            value = self._all.get(name)
            if value not in (None, "", [], {}):
                return name, value
        return names[0], None

    def text(self, *names: str, longest: int = LONGEST_COMMAND_BYTES) -> str | None:
        """A text of at most ``longest`` bytes."""
        name, value = self.named(*names)
        if value is None:
            return None
        if not isinstance(value, str):
            raise RowError(name, _kind(value), "a text")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise RowError(name, "half a surrogate pair", "text of Unicode") from None
        if size > longest:
            raise RowError(name, f"{size} bytes", f"at most {longest}")
        return value

    def diff(self, *names: str) -> bytes:
        """A unified diff; empty where there is none."""
        name, _ = self.named(*names)
        text = self.text(*names, longest=LONGEST_PATCH_BYTES)
        if text is None:
            return b""
        found = text.encode()
        if not diffs.paths(found):
            raise RowError(name, repr(text[:40]), "a unified diff")
        return found if found.endswith(b"\n") else found + b"\n"

    def commands(self, *names: str) -> tuple[str, ...]:
        """Shell commands: a list, or a text whose lines may be parted by a backslash and an ``n``."""
        name, value = self.named(*names)
        if value is None:
            return ()
        if isinstance(value, str):
            value = [value.replace("\\n", "\n")]
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise RowError(name, _kind(value), "a text, or a list of texts")
        if (size := sum(len(one.encode()) for one in value)) > LONGEST_COMMAND_BYTES:
            raise RowError(name, f"{size} bytes", f"at most {LONGEST_COMMAND_BYTES}")
        return tuple(one for one in value if one.strip())

    def names(self, *names: str) -> tuple[str, ...]:
        """A list of texts, which may itself be written as JSON."""
        name, value = self.named(*names)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise RowError(name, repr(value[:40]), "a list of test ids") from None
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise RowError(name, _kind(value), "a list of test ids")
        return tuple(dict.fromkeys(value))

    def files(self, *names: str) -> dict[str, bytes]:
        """Texts by path."""
        name, value = self.named(*names)
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise RowError(name, _kind(value), "texts by their paths")
        for path in value:
            if not path or ".." in path.split("/") or "\0" in path or path.endswith("/"):
                raise RowError(name, repr(path), "paths without '..'")
        if (size := sum(len(one.encode()) for one in value.values())) > LONGEST_PATCH_BYTES:
            raise RowError(name, f"{size} bytes", f"at most {LONGEST_PATCH_BYTES}")
        return {path: text.encode() for path, text in value.items()}


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", bool: "a boolean"}.get(type(value), type(value).__name__)


def row_key(found: Any, number: int) -> str | None:
    """A row's key; None of what is no row, or has a key that is none."""
    if not isinstance(found, Mapping):
        return None
    try:
        return _key(_Fields(found), number)
    except RowError:
        return None


def _key(fields: _Fields, number: int) -> str:
    return fields.text("instance_id", "key", "id", "label", longest=255) or str(number)


def read_row(found: Any, defaults: Defaults, *, number: int) -> Row:
    """The row that a JSON object is.

    Args:
        found: the object.
        defaults: for what it does not say.
        number: its key where it has none.

    Raises:
        RowError: it is none, or lacks what is needed.
    """
    if not isinstance(found, Mapping):
        raise RowError("row", _kind(found), "an object")
    fields = _Fields(found)
    key = _key(fields, number)
    statement = fields.text("problem_statement", "statement", "instruction", longest=LONGEST_STATEMENT_BYTES)
    statement = statement or _asked(fields)
    if not statement.strip():
        raise RowError("problem_statement", "nothing", "a text")
    workdir = fields.text("workdir") or defaults.workdir or _WORKDIR
    grader = _grader(fields, fields.text("python") or defaults.python)
    test_files = {**fields.files("tests", "test_files"), **_script(fields)}
    return Row(
        key=key,
        image=_image(fields, defaults, key),
        workdir=checked_workdir(workdir),
        statement=statement,
        grader=grader,
        setup=fields.commands("pre_commands", "setup"),
        base_commit=_commit(fields),
        files=fields.files("files"),
        test_files=test_files,
        gold=fields.diff("patch", "gold_patch") or None,
        solution=fields.text("solution"),
    )


def _image(fields: _Fields, defaults: Defaults, key: str) -> str:
    image = fields.text("image", "image_url", "image_name", "docker_image", longest=4096)
    if image is None and defaults.image is not None:
        docker = key.lower().replace("__", "_1776_")
        image = defaults.image.replace("{instance_id}", key).replace("{docker_id}", docker)
    if image is None:
        raise RowError("image", "nothing", "an image, here or as args.image")
    return image


def checked_workdir(path: str) -> str:
    """An absolute path that is not a folder of the system's.

    Raises:
        RowError: it is none.
    """
    plain = posixpath.normpath(path)
    if not plain.startswith("/") or plain in ("/", "/tmp", "/proc", "/dev", "/sys") or plain.startswith("/tmp/echorl"):  # noqa: S108
        raise RowError("workdir", repr(path), "the absolute path of a folder of its own")
    return plain


def _commit(fields: _Fields) -> str | None:
    commit = fields.text("base_commit", longest=64)
    if commit is not None and not (7 <= len(commit) <= 64 and set(commit) <= set("0123456789abcdef")):
        raise RowError("base_commit", repr(commit), "a commit's hexadecimal name")
    return commit


def _asked(fields: _Fields) -> str:
    """The user's words of a ``prompt``, a text or messages."""
    name, prompt = fields.named("prompt")
    if isinstance(prompt, list):
        said = [one.get("content") for one in prompt if isinstance(one, dict) and one.get("role") == "user"]
        prompt = next((one for one in said if isinstance(one, str)), None)
    text = prompt if isinstance(prompt, str) else ""
    if len(text.encode()) > LONGEST_STATEMENT_BYTES:
        raise RowError(name, f"{len(text.encode())} bytes", f"at most {LONGEST_STATEMENT_BYTES}")
    return text


def _grader(fields: _Fields, python: str) -> Grader:
    if command := fields.text("eval_cmd"):
        return CommandGrader(command, suite="pytest" in command)
    if fields.text("f2p_script", longest=LONGEST_PATCH_BYTES):
        return CommandGrader(f"{python} {_F2P_SCRIPT}", suite=True)
    if fail := fields.names("FAIL_TO_PASS", "fail_to_pass"):
        passing = fields.names("PASS_TO_PASS", "pass_to_pass")
        patch = fields.diff("test_patch")
        return SuiteGrader("pytest", _files_of((*fail, *passing)), fail, passing, patch, python)
    if command := fields.text("test_command"):
        if not fields.files("tests", "test_files"):
            raise RowError("tests", "nothing", "the files that test_command runs, by their paths")
        return CommandGrader(command, suite="pytest" in command, reward_file=fields.text("reward_file"))
    raise RowError("tests", "no grader", _GRADERS)


def _files_of(ids: Sequence[str]) -> tuple[str, ...]:
    files: dict[str, None] = {}
    for one in ids:
        path = one.partition("::")[0]
        if not path.endswith(".py") or " " in path or path.startswith("/") or ".." in path.split("/"):
            raise RowError(
                "FAIL_TO_PASS", repr(one[:80]), "ids of pytest such as tests/test_a.py::test_b; eval_cmd for others"
            )
        files[path] = None
    return tuple(files)


def _script(fields: _Fields) -> dict[str, bytes]:
    if fields.text("eval_cmd"):
        return {}
    script = fields.text("f2p_script", longest=LONGEST_PATCH_BYTES)
    return {_F2P_SCRIPT: script.encode()} if script else {}
