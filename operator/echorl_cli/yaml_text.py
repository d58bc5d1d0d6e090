"""Strict YAML: one document, each key once, and scalars as a cluster's API server reads them.

Read event by event from libyaml, with positions for messages and bounds on everything: text may be hostile.
"""

import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from echorl_manifest import Problem

MAX_TEXT_BYTES = 16_000_000
MAX_DEPTH = 100
MAX_VALUES = 100_000
"""Values of a document; one that is referred to counts each time."""
_MAX_DIRECTIVES = 8
_TAGS = "tag:yaml.org,2002:"
_BOOLEANS = SafeConstructor.bool_values
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INT = re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")
_FLOAT = re.compile(
    r"^([-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_LONGEST_INT = 100
"""Characters; a field of the manifest takes 64 bits, arguments of an environment what Python takes."""
_LONGEST_FLOAT = 400
_LONGEST_WORD = 60
_MERGE = object()


class YamlProblem(ValueError):
    """A text that is no single, unambiguous YAML document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _StrictDumper(yaml.SafeDumper):
    """Quotes text that the reader would take for a number."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAGS) in {"bool", "merge", "null"}]
        for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


_StrictDumper.add_implicit_resolver(f"{_TAGS}int", _INT, list("-+0123456789"))
_StrictDumper.add_implicit_resolver(f"{_TAGS}float", _FLOAT, list("-+0123456789."))


class _Frame:
    """A list or mapping that is being read."""

    def __init__(self, event: NodeEvent, values_before: int) -> None:
        self.event = event
        self.values_before = values_before
        self.value: Any = [] if isinstance(event, SequenceStartEvent) else {}
        self.key: Any = None
        """The key whose value comes next; None: a key comes next."""
        self.merged: list[dict[str, Any]] = []

    @property
    def wants_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None

    def add(self, value: Any, event: NodeEvent) -> None:
        """Take a value, or a key."""
        if isinstance(self.value, list):
            self.value.append(value)
        elif self.key is None:
            if not isinstance(value, str) and value is not _MERGE:
                _refuse(event, f"the key {_shown(value)}, which is no text (quote it)", "text")
            if value in self.value or (value is _MERGE and self.merged):
                _refuse(event, f"the key {'<<' if value is _MERGE else repr(value)} a second time", "each key once")
            self.key = value
            if value is not _MERGE:
                self.value[value] = None
        else:
            key, self.key = self.key, None
            if key is not _MERGE:
                self.value[key] = value
                return
            self.merged = value if isinstance(value, list) else [value]
            if not all(isinstance(mapping, dict) for mapping in self.merged):
                _refuse(event, "something else than mappings to merge", "a mapping, or a list of mappings, after <<")

    def whole(self) -> Any:
        """The value, once it has ended."""
        for other in self.merged:
            for key, value in other.items():
                self.value.setdefault(key, value)
        return self.value


class _Reader:
    """One document's value from its events."""

    def __init__(self) -> None:
        self._stack: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        """Values, and how many there are in each; -1: it has not ended."""
        self._values = 0
        self.result: Any = None

    def take(self, event: Event) -> None:
        """Go on by one event."""
        if isinstance(event, CollectionEndEvent):
            frame = self._stack.pop()
            self._name(frame.event, frame.whole(), self._values - frame.values_before)
            self._add(frame.value, frame.event)
        elif isinstance(event, AliasEvent):
            self._add(self._meant(event), event)
        elif isinstance(event, ScalarEvent):
            value = _scalar(event, is_key=bool(self._stack) and self._stack[-1].wants_key)
            self._count(1, event)
            self._name(event, value, 1)
            self._add(value, event)
        elif isinstance(event, MappingStartEvent | SequenceStartEvent):
            self._begin(event)

    def _begin(self, event: MappingStartEvent | SequenceStartEvent) -> None:
        kind = "list" if isinstance(event, SequenceStartEvent) else "mapping"
        if self._stack and self._stack[-1].wants_key:
            _refuse(event, f"a {kind} as a key", "text")
        if event.tag not in {None, "!", f"{_TAGS}seq" if kind == "list" else f"{_TAGS}map"}:
            _refuse_tag(event)
        if len(self._stack) >= MAX_DEPTH:
            _refuse(event, f"values nested deeper than {MAX_DEPTH} levels", "a manifest")
        self._stack.append(_Frame(event, self._values))
        self._count(1, event)
        self._name(event, None, -1)

    def _add(self, value: Any, event: NodeEvent) -> None:
        if self._stack:
            self._stack[-1].add(value, event)
        else:
            self.result = value

    def _meant(self, event: AliasEvent) -> Any:
        if event.anchor not in self._anchors:
            _refuse(event, f"a reference to {_shown(event.anchor)}, which is defined nowhere before", "YAML")
        value, size = self._anchors[event.anchor]
        if size < 0:
            _refuse(event, "values that contain themselves", "a mapping of finite depth")
        self._count(size, event)
        return value

    def _name(self, event: NodeEvent, value: Any, size: int) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, size)

    def _count(self, values: int, event: Event) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            _refuse(event, f"more than {MAX_VALUES:,} values", "a manifest")


def parse_yaml(text: str) -> Any:
    """The value of a YAML text; None if it holds none.

    Raises:
        YamlProblem: bad syntax, a key twice or a key that is no text, several documents, tags beyond JSON's types,
            numbers without end; or more text, values or levels than any manifest has.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise YamlProblem(Problem("manifest", f"{len(text):,} characters", f"at most {MAX_TEXT_BYTES:,}"))
    reader, documents = _Reader(), 0
    for event in _events(text):
        if isinstance(event, DocumentStartEvent):
            documents += 1
            if documents > 1:
                _refuse(event, "a second document", "one document per file")
        reader.take(event)
    return reader.result


def _events(text: str) -> Iterator[Event]:
    if text.count("\n%") > _MAX_DIRECTIVES:  # libyaml compares each with all others
        raise YamlProblem(Problem("line 1", f"more than {_MAX_DIRECTIVES} directives (%)", "a manifest"))
    try:
        yield from yaml.parse(_utf8(text), Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "manifest"
        mistake = (error.problem or error.context or "an error").removeprefix("found ")
        mistake = re.sub("^(did|could) not find (expected )?", "no ", mistake)
        raise YamlProblem(Problem(where, mistake, "YAML")) from None
    except yaml.YAMLError as error:
        raise YamlProblem(Problem("manifest", " ".join(str(error).split()), "YAML text")) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        mistake = f"character {error.start + 1} that is none of Unicode"
        raise YamlProblem(Problem("manifest", mistake, "UTF-8 text")) from None


def _scalar(event: ScalarEvent, *, is_key: bool) -> Any:
    text: str = event.value
    tag = None if event.tag is None else event.tag.removeprefix(_TAGS)
    if tag in {"!", "str"} or (tag is None and not event.implicit[0]):
        return text
    if tag is None:
        return _MERGE if is_key and text == "<<" else _plain(text, event)
    value = _plain(text, event)
    kinds = {"int": int, "float": float, "bool": bool, "null": type(None)}
    if tag not in kinds:
        _refuse_tag(event)
    if tag == "float" and type(value) is int:
        return float(value)
    if type(value) is not kinds[tag]:
        _refuse(event, f"!!{tag} {_shown(text)}", f"no tag, or a value that is a{'n' if tag == 'int' else ''} {tag}")
    return value


def _plain(text: str, event: ScalarEvent) -> Any:
    """What a text without quotes is."""
    if text in _NULLS:
        return None
    if len(text) < 6 and text.lower() in _BOOLEANS and text in {text.lower(), text.upper(), text.capitalize()}:
        return _BOOLEANS[text.lower()]
    if text[0] not in "-+.0123456789":
        return text
    if _INT.match(text):
        return _whole_number(text, event)
    if _FLOAT.match(text):
        if len(text) > _LONGEST_FLOAT:
            _refuse(event, f"a number of {len(text):,} characters", f"at most {_LONGEST_FLOAT}")
        return _fraction(text.replace("_", "").lower())
    return text


def _whole_number(text: str, event: ScalarEvent) -> int:
    digits = text.replace("_", "").lower()
    base = 16 if "0x" in digits else 2 if "0b" in digits else 10
    if digits in {"-0x", "0x", "+0x", "-0b", "0b", "+0b"}:
        _refuse(event, f"{_shown(text)}, a number without digits", "YAML")
    if len(digits) > _LONGEST_INT:
        _refuse(event, f"a whole number of {len(digits):,} characters", f"at most {_LONGEST_INT}")
    return int(digits, base)


def _fraction(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _refuse_tag(event: ScalarEvent | MappingStartEvent | SequenceStartEvent) -> NoReturn:
    tag = str(event.tag).replace(_TAGS, "!!", 1)
    _refuse(event, f"the tag {tag[:_LONGEST_WORD]}", "no tag: text, numbers, true, false, null, lists and mappings")


def _refuse(event: Event, found: str, accepted: str) -> NoReturn:
    mark = event.start_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "manifest"
    raise YamlProblem(Problem(where, found, accepted))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_WORD else f"{text[: _LONGEST_WORD - 3]}..."


def to_yaml(value: Any) -> str:
    """YAML that ``parse_yaml`` reads back as the same; text stands as it is, or escaped where it must be."""
    text = _dumped(value, allow_unicode=True)
    # PyYAML writes U+0085 as it is and reads it as the end of a line.
    return _dumped(value, allow_unicode=False) if "\x85" in text else text


def _dumped(value: Any, *, allow_unicode: bool) -> str:
    text: str = yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=allow_unicode, width=120)
    return text
