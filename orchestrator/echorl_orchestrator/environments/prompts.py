"""Prompt packs: what members are told, as sandboxed jinja2 templates that are checked before a run starts.

Three kinds of templates. ``system`` and ``question`` open a member's conversation, so they know the task and nothing of
what is said later. A ``turns`` template asks for one turn; beside the task it knows the per-turn variables.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import StrictUndefined, TemplateError, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict

from echorl_orchestrator.environments.contract import Slot
from echorl_orchestrator.failures import BadInputError

PER_TURN = frozenset({"slot", "phase", "transcript", "heard", "turn", "round", "last_round"})
"""Variables of ``turns`` templates alone: the slot's id and phase, all that was said so far (member, slot and text of
each), what of it is new to this member, the number of its own turn from 0, the round's from 1, and whether that is the
last."""
EVERYBODY = "default"
"""Key of the template for members, or phases, without one of their own."""
_GLOBALS = {"range": range, "len": len}
_NOWHERE: dict[str, str] = {}


class PackText(BaseModel):
    """Templates by member, and by member and phase; ``default`` stands for all others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: dict[str, str] = {}
    """By member; a member without one gets no system message."""
    question: dict[str, str] = {}
    """By member; begins its first user message."""
    turns: dict[str, dict[str, str]] = {}
    """By member, then by phase."""
    verdicts: dict[str, str] = {}
    """Words that a judge decides by: what each stands for -> the word."""


class PromptPack:
    """Checked templates."""

    def __init__(self, text: PackText, members: Sequence[str], schedule: Sequence[Slot]) -> None:
        """Parse and check all templates.

        Args:
            text: the templates.
            members: of the environment.
            schedule: each (member, phase) of it must have a template.

        Raises:
            BadInputError: all that is wrong, one a line.
        """
        self._sandbox = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
        self._sandbox.globals = {**_GLOBALS}
        self._text = text
        found = [*self._template_problems(), *self._name_problems(members), *self._missing(schedule)]
        found += verdict_problems(text.verdicts)
        if found:
            raise BadInputError("\n".join(f"prompts.{one}" for one in found))

    def opening(self, member: str, variables: Mapping[str, Any]) -> tuple[str | None, str]:
        """A member's system message, if it has one, and the beginning of its first user message.

        Raises:
            jinja2.TemplateError: a variable is missing.
        """
        system, question = (_chosen(part, member) for part in (self._text.system, self._text.question))
        rendered = None if system is None else self._rendered(system, {**variables, "member": member})
        return rendered, "" if question is None else self._rendered(question, {**variables, "member": member})

    def turn(self, member: str, phase: str, variables: Mapping[str, Any]) -> str:
        """What asks a member for one turn.

        Raises:
            jinja2.TemplateError: a variable is missing.
        """
        template = self._turn(member, phase)
        if template is None:
            raise KeyError((member, phase))
        return self._rendered(template, {**variables, "member": member, "phase": phase})

    def verdict(self, said: str) -> str | None:
        """What the last verdict word in a judge's speech stands for; None if there is none. Case does not matter."""
        places = {meaning: said.casefold().rfind(word.casefold()) for meaning, word in self._text.verdicts.items()}
        best = max(places, key=lambda meaning: places[meaning], default=None)
        return best if best is not None and places[best] >= 0 else None

    def _rendered(self, template: str, variables: Mapping[str, Any]) -> str:
        return self._sandbox.from_string(template).render(**variables, **self._verdict_words())

    def _verdict_words(self) -> dict[str, Any]:
        return {"verdicts": dict(self._text.verdicts)}

    def _turn(self, member: str, phase: str) -> str | None:
        own, shared = (self._text.turns.get(name, _NOWHERE) for name in (member, EVERYBODY))
        for table, key in ((own, phase), (own, EVERYBODY), (shared, phase), (shared, EVERYBODY)):
            if key in table:
                return table[key]
        return None

    def _templates(self) -> Iterator[tuple[str, str, bool]]:
        """Place, text, and whether per-turn variables are allowed."""
        for kind in ("system", "question"):
            for member, template in getattr(self._text, kind).items():
                yield f"{kind}.{member}", template, False
        for member, phases in self._text.turns.items():
            for phase, template in phases.items():
                yield f"turns.{member}.{phase}", template, True

    def _template_problems(self) -> Iterator[str]:
        for place, template, per_turn in self._templates():
            try:
                parsed = self._sandbox.parse(template)
                variables = meta.find_undeclared_variables(parsed)
                self._sandbox.from_string(template)
            except TemplateError as error:
                yield f"{place}: no template: {error}"
                continue
            if not per_turn and (wrong := sorted((variables | _assigned(parsed)) & PER_TURN)):
                yield f"{place}: found {', '.join(wrong)}, which only turns templates have"

    def _name_problems(self, members: Sequence[str]) -> Iterator[str]:
        known = {*members, EVERYBODY}
        for kind in ("system", "question", "turns"):
            for name in getattr(self._text, kind):
                if name not in known:
                    yield f"{kind}: found {name!r}, accepted are {', '.join(members)} and {EVERYBODY}"

    def _missing(self, schedule: Sequence[Slot]) -> Iterator[str]:
        pairs = {(member, slot.phase): None for slot in schedule for member in slot.members}
        for member, phase in pairs:
            if self._turn(member, phase) is None:
                yield f"turns: found none for {member} in phase {phase!r}, accepted is one of its own or a default"


def _chosen(table: Mapping[str, str], member: str) -> str | None:
    return table.get(member, table.get(EVERYBODY))


def _assigned(parsed: Any) -> set[str]:
    """Names that a template sets itself: to hide a per-turn variable behind one of its own is refused as well."""
    return {name.name for name in parsed.find_all(nodes.Name) if name.ctx in {"store", "param"}}


def verdict_problems(verdicts: Mapping[str, str]) -> Iterator[str]:
    """Words of which one could be taken for another: equal, or one within the other, whatever their case."""
    words = sorted(verdicts.items())
    for index, (meaning, word) in enumerate(words):
        if not word.strip():
            yield f"verdicts.{meaning}: found {json.dumps(word)}, accepted is a word"
        for other, second in words[:index]:
            if word.casefold() in second.casefold() or second.casefold() in word.casefold():
                yield f"verdicts: {word!r} ({meaning}) and {second!r} ({other}) collide: one is within the other"
