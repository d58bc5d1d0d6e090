"""From rules to cases: every rule of the CRD has a manifest that breaks it, which the real API server is shown.

That the server answers with the rule's field and words is tested in ``tests/cluster/test_crd_rules.py``; transition
rules are tried in ``tests/cluster/test_crd_changes.py``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from echorl_core.problem import Problem
from echorl_manifest import problems
from echorl_manifest.crd.assembly import open_api_schema
from echorl_testing.manifests.documents import with_value
from echorl_testing.manifests.refused import BROKEN_RULES, NOT_SUPPORTED_YET, Refused, indexed, unsupported_base
from echorl_testing.manifests.refused_rules import REFUSED_RULES

HOLE = "another value"
"""Stands in a rule's message for what the server fills in."""
MESSAGE = re.compile(r"(?:(?P<reason>.*); )?found (?P<found>.*); accepted: (?P<accepted>.*)", re.DOTALL)


@dataclass(frozen=True)
class Case:
    """What a refused manifest is expected to be told, and by which words at which field."""

    field: str
    words: str
    told: tuple[Problem, ...]
    """What ``echorl validate`` says of the same place."""


def cases() -> Iterator[Case]:
    for case in (*BROKEN_RULES, *REFUSED_RULES):
        yield expected(case)
    for path, value in NOT_SUPPORTED_YET:
        found = (one for one in problems(with_value(unsupported_base(), path, value)) if one.path == indexed(path))
        yield Case(field_of(indexed(path)), "not supported yet", tuple(found))


def expected(case: Refused) -> Case:
    told = tuple(one for one in problems(case.document()) if one.path == case.path)
    return Case(field_of(case.server_path or case.path), case.server_says or case.accepted, told)


def field_of(path: str) -> str:
    """An error's path as the schema has it: items of lists and values of maps without their keys."""
    return re.sub(r"\[\w+\]", "{}", re.sub(r"\[\d+\]", "[]", path))


def rules(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Field and message of every rule that a new object can break."""
    for entry in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in entry["rule"]:
            yield (path + entry.get("fieldPath", "")).lstrip("."), entry["message"]
    for key, inner in schema.get("properties", {}).items():
        yield from rules(inner, f"{path}.{key}".lstrip("."))
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if key in schema:
            yield from rules(schema[key], f"{path}{sign}")


ALL = sorted(set(rules(open_api_schema())))
CASES = list(cases())


def untried(found: list[Case]) -> list[tuple[str, str]]:
    """Rules that none of the cases is expected to break."""
    return [(field, message) for field, message in ALL if not any(breaks(one, field, message) for one in found)]


def breaks(case: Case, field: str, message: str) -> bool:
    """Whether this rule is what the case is refused by, and no other rule at the same field."""
    if case.field != field:
        return False
    others = [other for place, other in ALL if place == field and case.words in other]
    if others == [message]:
        return True
    parts = MESSAGE.fullmatch(message)
    return parts is not None and any(says_the_same(parts, problem) for problem in case.told)


def says_the_same(message: re.Match[str], problem: Problem) -> bool:
    """The rest of what was found may be worded otherwise by a rule that sees a list alone."""
    is_absent = message["found"] == "nothing"
    told = is_filled_in(message["reason"] or "", problem.reason) and is_filled_in(message["accepted"], problem.accepted)
    return told and is_absent is (problem.found == "nothing")


def is_filled_in(template: str, text: str) -> bool:
    """Whether ``text`` is the template with something in its holes."""
    return re.fullmatch(".*".join(map(re.escape, template.split(HOLE))), text, re.DOTALL) is not None


def test_every_rule_has_a_manifest_that_breaks_it() -> None:
    assert len(ALL) > 150
    assert untried(CASES) == []


@pytest.mark.parametrize("number", range(0, len(REFUSED_RULES), 7))
def test_a_rule_without_its_manifest_is_found(number: int) -> None:
    without = [case for place, case in enumerate(CASES) if place != len(BROKEN_RULES) + number]
    (left,) = untried(without)
    assert left[0] == CASES[len(BROKEN_RULES) + number].field
