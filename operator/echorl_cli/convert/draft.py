"""The manifest while it is made: fields, where they came from, and what has to be said."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from echorl_cli.convert.secret import HIDDEN, without_secrets
from echorl_cli.convert.settings import Settings
from echorl_cli.convert.tree import location, put
from echorl_manifest.schema import Location, path_text

NO_VERSION = "no version of prime-rl that is known here has it"
KEPT_OUT = "a secret stays out of manifests; give it by a Secret in env of spec.<role>.template"


class Kind(StrEnum):
    """What a line is about."""

    NO_COUNTERPART = "no counterpart"
    CHANGED = "changed"
    DEFAULT = "default"
    TO_FILL_IN = "to fill in"


@dataclass(frozen=True)
class Line:
    """One thing that the user has to know."""

    kind: Kind
    subject: str
    """``key = value`` in the one spelling, or a field of the manifest."""
    text: str
    written: str = ""
    """``key = value`` as the file has it; empty: the same."""

    def __str__(self) -> str:
        """The line with the key as the file has it."""
        return f"{self.written or self.subject}: {self.kind}: {self.text}"

    @property
    def comment(self) -> str:
        """The line with the key in the one spelling."""
        return f"{self.subject}: {self.kind}: {self.text}"


class ManifestDraft:
    """Fields of the manifest by path, each with the key that it was made from."""

    def __init__(self, settings: Settings, *, keep_going: bool = False) -> None:
        self.document: dict[str, Any] = {}
        self.lines: list[Line] = []
        self.keep_going = keep_going
        self._settings = settings
        self._sources: dict[str, str] = {}

    def put(self, path: str, value: Any, source: str = "") -> None:
        """Set a field; a value None is left out. Secrets in it are left out, each with a line."""
        if value is None:
            return
        kept = self.clean(source or path, value)
        if kept is None:
            return
        put(self.document, location(path), kept)
        if source:
            self._sources[path] = source

    def clean(self, key: str, value: Any) -> Any:
        """A value without the secrets in it, each of them told; None if it is one."""
        kept, gone = without_secrets(location(key), value)
        for where in gone:
            written = f"{self._settings.written(where)} = {HIDDEN}"
            self.lines.append(Line(Kind.NO_COUNTERPART, f"{path_text(where)} = {HIDDEN}", KEPT_OUT, written))
        return kept

    def source(self, path: str) -> str | None:
        """The key, as the file has it, that a field or the table around it was made from."""
        while path:
            if path in self._sources:
                return self._settings.written(self._sources[path])
            path = path.rpartition("[" if path.endswith("]") else ".")[0]
        return None

    def first(self, *keys: str) -> str | None:
        """As ``first`` of the settings; set keys with another value get a line."""
        chosen = self._settings.first(*keys)
        for key in keys:
            if chosen and self._settings.peek(key) not in (None, self._settings.value(chosen)):
                self.say(Kind.NO_COUNTERPART, key, f"{chosen} goes before it")
        return chosen

    def say(self, kind: Kind, key: str | Location, text: str) -> None:
        """A line about a key that is set; once, however many environments take it."""
        settings = self._settings
        value = settings.shown(key)
        subject = path_text(location(key) if isinstance(key, str) else key)
        line = Line(kind, f"{subject} = {value}", text, f"{settings.written(key)} = {value}")
        if line not in self.lines:
            self.lines.append(line)

    def tell(self, kind: Kind, subject: str, text: str) -> None:
        """A line about a field of the manifest, or about a key that is not set; once."""
        if (line := Line(kind, subject, text)) not in self.lines:
            self.lines.append(line)

    def refuse(self, key: str, accepted: str, reason: str = "") -> None:
        """The value decides what is trained and means nothing to the manifest: an error; with keep-going a line."""
        if self.keep_going:
            self.say(Kind.NO_COUNTERPART, key, f"{reason or 'the manifest has no such value'}; EchoRL's default stands")
            return
        self.error(key, accepted, reason or "the manifest has no such value")

    def error(self, key: str, accepted: str, reason: str = "") -> None:
        """The value is none that prime-rl takes, or one that no manifest can stand for."""
        self._settings.wrong(key, accepted, reason)
