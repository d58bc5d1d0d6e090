"""Tables of what nobody should give a program."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONG = "x" * 1_000_000


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "minus one": -1,
    "99 digits": 10**98,
    "NaN": float("nan"),
    "infinity": float("-inf"),
    "1e308": 1e308,
    "empty text": "",
    "long text": LONG,
    "a NUL": "a\0b",
    "dots": "../../etc/passwd",
    "a shell's": "$(reboot); rm -rf /",
    "two lines": "a\nb",
    "not ASCII": "ü\u202e\U0001f600",
    "markup": "[red]{{ 7 * 7 }}%s</script>",
    "empty list": [],
    "empty mapping": {},
    "long list": [1] * 5000,
    "nested": _nested(60),
    "mapping": {"a b/c/d": {"": [None]}},
}
"""As a field of a manifest."""

TEXTS: dict[str, bytes] = {
    "nothing": b"",
    "bytes": bytes(range(256)) * 8,
    "UTF-16": "a: 1".encode("utf-16"),
    "a NUL": b"a: \0",
    "a number": b"7",
    "a list": b"- 1\n- 2\n",
    "two documents": b"a: 1\n---\nb: 2\n",
    "open bracket": b"a: [1, 2",
    "deep brackets": b"[" * 200_000,
    "deep braces": b"{a: " * 50_000,
    "deep blocks": b"\n".join(b" " * depth + b"a:" for depth in range(2000)),
    "alias bomb": b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)),
    "merge bomb": b"a0: &a0 {k0: 1}\n"
    + b"".join(b"a%d: &a%d {<<: [%s], k%d: 1}\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9), n) for n in range(1, 12)),
    "itself": b"a: &a [*a]",
    "a set": b"a: !!set {x, y}",
    "maybe": b"a: !!bool maybe",
    "a time": b"a: !!timestamp yesterday",
    "an object": b"a: !!python/object/apply:os.system [reboot]",
    "binary": b"a: !!binary '*'",
    "a list as a key": b"[a, b]: 1",
    "a key twice": b"a: 1\na: 2\n",
    "5,000 digits": b"a: " + b"9" * 5000,
    "a million digits": b"maxSteps = " + b"9" * 1_000_000,
    "10 MB of rows": b"a:\n" + b"- {name: x, v: [1, 2, 3]}\n" * 400_000,
    "10 MB of text": b"a: " + b"x" * 10_000_000,
    "10 MB of lines": b"\n" * 10_000_000,
    "directives": b"%TAG !a! tag:x\n" * 50_000 + b"---\na: 1\n",
    "anchors": b"".join(b"- &x%d 1\n" % n for n in range(50_000)),
    "contexts a number": b"contexts: 5\ncurrent-context: x\n",
    "contexts without names": b"contexts: [{}]\ncurrent-context: x\n",
    "context a text": b"contexts: [{name: x, context: y}]\ncurrent-context: x\n",
    "no cluster": b"contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\nclusters: []\n",
    "users a text": b"contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\nclusters: y\nusers: z\n",
    "TOML": b"a = 1979-05-27T07:32:00Z\n[b.c]\n[[d]]\nx = nan\n",
    "TOML of 5,000 digits": b"max_steps = " + b"9" * 5000,
    "TOML deep": b"a = " + b"[" * 5000,
    "TOML dotted": b".".join([b"a"] * 3000) + b" = 1",
}
"""As a file."""

LINES: dict[str, str] = {
    "no JSON": "{",
    "a number": "7",
    "deep": "[" * 100_000,
    "half a surrogate": '{"step": 1, "attempt": 1, "environment": "\\ud800", "reward": 1}',
    "wrong types": '{"step": 1, "attempt": 1, "turns": 3, "messages": 4}',
    "odd values": '{"step": 1, "attempt": 1, "filters": 5, "environment": {}, "reward": "x", "advantage": []}',
    "400 digits": f'{{"step": {10**400}, "attempt": 1}}',
    "18 digits": '{"step": 999999999999999999, "attempt": 999999999999999999, "reward/all/mean": 1e308}',
    "negative": '{"step": -5, "attempt": -1, "reward/all/mean": -1e308}',
    "lists of lists": '{"step": 1, "attempt": 1, "turns": [[]], "messages": [[]]}',
    "odd turns": '{"step": 1, "attempt": 1, "turns": [{"start_s": "x", "end_s": [], "tool_s": 1e308}]}',
    "odd calls": '{"step": 1, "attempt": 1, "messages": [{"role": 1, "tool_calls": [1, {"function": 2}]}]}',
    "NaN": '{"step": 1, "attempt": 1, "reward/all/mean": NaN, "reward": Infinity, "version": NaN}',
    "true": '{"step": true, "attempt": true, "skipped": 7, "version": true}',
}
"""As a line of records."""

STATES: dict[str, str] = {
    "nothing": "",
    "no JSON": "{",
    "a list": "[]",
    "deep": "[" * 100_000,
    "wrong types": '{"timeline": 7, "uid": 8, "name": [], "phase": {}, "restarts": "x", "wall_s": [], "run_uid": 3}',
    "odd entries": '{"timeline": [3, null], "restarts_by_cause": {"a": "b"}, "uid": "u1", "resume_step": "x"}',
    "400 digits": f'{{"wall_s": {10**400}, "resume_step": {10**400}}}',
    "leads away": '{"uid": "../../x", "name": "../../y", "created": "", "mark": "", "processes": {"1": 1}}',
}
"""As a file of one JSON value in a run's directory."""


TOML_VALUES = {
    "infinity": "inf",
    "minus infinity": "-inf",
    "1e308": "1e308",
    "zero": "0",
    "5,000 digits": "9" * 5000,
    "a date": "1979-05-27",
    "NaN": "nan",
    "a text": '"x"',
    "a list": "[[], {}]",
    "a mapping": "{a = {b = 1}}",
    "long": f'"{"x" * 100_000}"',
    "minus": "-1",
    "true": "true",
}
"""As a key's value in TOML."""


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


def _dangling(path: Path) -> Path:
    path.symlink_to(path.with_name("nowhere") / "at all")
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return path


def _file(path: Path) -> Path:
    path.write_text("precious")
    return path


def _folder(path: Path) -> Path:
    path.mkdir()
    (path / "precious").write_text("precious")
    return path


PATHS: dict[str, Callable[[Path], Path | str]] = {
    "nothing there": lambda path: path,
    "a file": _file,
    "a folder": _folder,
    "under a file": lambda path: _file(path) / "x",
    "a pipe": _fifo,
    "a socket": _socket,
    "a loop": _loop,
    "a link to nothing": _dangling,
    "a device": lambda _: "/dev/null",
    "without end": lambda _: "/dev/zero",
    "under a device": lambda _: "/dev/null/x",
    "of the kernel": lambda _: "/proc/self/mem",
    "under the kernel's": lambda _: "/proc/x/y",
    "read-only": lambda _: "/sys/kernel/x",
    "over-long name": lambda path: path / ("x" * 300),
    "over-long path": lambda path: str(path / "/".join(["x" * 200] * 30)),
    "two lines": lambda path: path.with_name("a\nb"),
    "no UTF-8": lambda path: os.fsdecode(os.fsencode(path) + b"\xff"),
    "the empty text": lambda _: "",
    "a dash": lambda _: "-",
}
"""As a path; each makes what it names, if anything, at a free path."""

WORDS = {
    "empty": "",
    "upper": "Bad_NS",
    "long": "x" * 100_000,
    "slash": "../x",
    "lines": "a\nb",
    "equals": "=",
    "brackets": "a[0][99999999999999999999]=1",
    "dots": "...=1",
    "a number": "-1",
    "markup": "[/red]",
    "no UTF-8": os.fsdecode(b"\xff\xfe=1"),
}
"""As a word of an option."""
