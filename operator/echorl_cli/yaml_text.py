"""Strict YAML: one document, each key once, and scalars as a cluster's API server reads them."""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from echorl_operator.api import Problem

_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
_KEPT_TAGS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "merge", "null")}
_INT = re.compile(r"^[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$")
_FLOAT = re.compile(
    r"^([-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)


class YamlProblem(Exception):
    """A text that is no single, unambiguous YAML document."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _StrictLoader(yaml.SafeLoader):
    """Numbers as in JSON (``1e-6`` is one, ``1:30`` is none), no dates, no key twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if key.tag not in {_STRING_TAG, _MERGE_TAG}:
                found = getattr(key, "value", "a list or mapping")
                raise ConstructorError(None, None, f"the key {found!r}, which is no text (quote it)", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"the key {key.value!r} a second time", key.start_mark)
            seen.add(key.value)
        return node


class _StrictDumper(yaml.SafeDumper):
    """Quotes text that the loader would read as a number."""


for _kind in (_StrictLoader, _StrictDumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        YamlProblem: bad syntax, a key twice or a key that is no text, several documents, nesting without end.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "manifest"
        found = error.problem or error.context or "an error"
        raise YamlProblem(Problem(where, found.removeprefix("found "), _accepted(found))) from None
    except yaml.YAMLError as error:
        raise YamlProblem(Problem("manifest", " ".join(str(error).split()), "YAML text")) from None
    except RecursionError:
        raise YamlProblem(Problem("manifest", "values nested too deep", "a manifest")) from None
    except ValueError as error:
        raise YamlProblem(Problem("manifest", str(error), "YAML text")) from None


def to_yaml(value: Any) -> str:
    """YAML that ``parse_yaml`` reads back as the same; text stands as it is, or escaped where it must be."""
    text = _dumped(value, allow_unicode=True)
    # PyYAML writes U+0085 as it is and reads it as the end of a line.
    return _dumped(value, allow_unicode=False) if "\x85" in text else text


def _dumped(value: Any, *, allow_unicode: bool) -> str:
    text: str = yaml.dump(value, Dumper=_StrictDumper, sort_keys=False, allow_unicode=allow_unicode, width=120)
    return text


def _accepted(problem: str) -> str:
    if "second time" in problem:
        return "each key once"
    if "is no text" in problem:
        return "text"
    if "another document" in problem:
        return "one document per file"
    return "YAML"
