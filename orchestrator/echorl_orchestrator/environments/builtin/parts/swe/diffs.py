"""What a diff says of itself, without applying it."""

import re

_HEADER = re.compile(rb'^diff --git (?:"a/((?:[^"\\]|\\.)*)"|a/(.*?)) (?:"b/((?:[^"\\]|\\.)*)"|b/(.*))$', re.MULTILINE)
_PLAIN = re.compile(rb"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)", re.MULTILINE)
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_NAMED = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


def _unquoted(text: bytes) -> bytes:
    """A path that git quoted as C does."""

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _NAMED.get(code, code)

    return _ESCAPE.sub(plain, text)


def paths(diff: bytes) -> list[str]:
    """The paths that a unified diff changes, in order; those of a diff that is none of git's too."""
    found: dict[str, None] = {}
    for header in _HEADER.finditer(diff):
        for quoted, plain in ((header[1], header[2]), (header[3], header[4])):
            name = _unquoted(quoted) if quoted is not None else plain
            found[name.decode("utf-8", "surrogateescape")] = None
    if not found:
        for line in _PLAIN.finditer(diff):
            name = line[1].decode("utf-8", "surrogateescape").rstrip("\r")
            if name != "/dev/null":
                found[name] = None
    return list(found)
