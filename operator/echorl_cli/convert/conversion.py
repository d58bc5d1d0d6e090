"""Converts the files of a run to a manifest, and says everything that has to be said about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echorl_cli.convert.draft import Kind, Line, ManifestDraft
from echorl_cli.convert.fields import algorithm, batches, conversations, engines, environments, model, runtime, trainer
from echorl_cli.convert.keys import KEYS
from echorl_cli.convert.layers import read_layers
from echorl_cli.convert.problem import ConversionError
from echorl_cli.convert.settings import Settings, Table
from echorl_cli.convert.spelling import one_spelling
from echorl_manifest import API_VERSION, KIND, EchoRLRun, Problem
from echorl_manifest.schema import found_text
from echorl_manifest.validation import parsed

# Marks of files that prime-rl reads too, or will, and that are no run of reinforcement learning as it is known here.
UNKNOWN_FORMS = {
    "version": "files of prime-rl name no version",
    "schema_version": "files of prime-rl name no version",
    "config_version": "files of prime-rl name no version",
    "orchestrator.algorithms": "a list of algorithms; one table `algo` is known",
    "orchestrator.actor": "a choice among several models; one policy is known",
    "orchestrator.models": "a choice among several models; one policy is known",
    "serve": "a file of an environment server",
}


LISTS = tuple(dict.fromkeys(key.key.partition("[]")[0] for key in KEYS if "[]" in key.key))
"""Keys that hold a list of tables."""
_TABLE = Table(KEYS)
NO_STALL = "prime-rl waits for ever; a run of EchoRL restarts after 30m without a step: raise it if yours take longer"


@dataclass(frozen=True)
class Options:
    """What the user adds to the files."""

    name: str | None = None
    """Name of the run; None leaves it to the files."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Types of environments, by their name or id."""
    keep_going: bool = False
    """Unknown keys, and values without counterpart that decide what is trained, become lines."""


@dataclass(frozen=True)
class Conversion:
    """A manifest that pydantic accepts, and the lines about it."""

    run: EchoRLRun
    lines: tuple[Line, ...]

    @property
    def document(self) -> dict[str, Any]:
        """The manifest with the fields that were set, in the order of the models."""
        return self.run.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _unknown_forms(tree: dict[str, Any]) -> list[Problem]:
    problems = []
    for key, reason in UNKNOWN_FORMS.items():
        below: Any = tree
        for step in key.split("."):
            below = below.get(step) if isinstance(below, dict) else None
        if below is not None:
            accepted = "the files of a run: trainer, orchestrator, inference and what they share"
            problems.append(Problem(key, "a form of configuration that is unknown here", accepted, reason))
    return problems


def _checked_keys(settings: Settings, draft: ManifestDraft) -> None:
    for path in LISTS:
        settings.items(path)
    for where in settings.misplaced():
        settings.wrong(where, "a table")
    for where in settings.unknown():
        if draft.keep_going:
            draft.say(Kind.NO_COUNTERPART, where, "unknown key")
            continue
        meant = settings.meant(where)
        reason = f"unknown key, did you mean {meant}?" if meant else "unknown key"
        settings.wrong(where, "the keys of docs/migration.md; --keep-going leaves it out", reason)


def _built(settings: Settings, draft: ManifestDraft, options: Options) -> None:
    draft.put("apiVersion", API_VERSION)
    draft.put("kind", KIND)
    runtime.name(settings, draft, options.name)
    model.build(settings, draft)
    chosen = algorithm.Chosen("data", mode="sft") if settings.supervised else algorithm.build(settings, draft)
    scene = environments.Scene(settings, draft, options.types, chosen)
    if settings.supervised:
        conversations.build(scene)
    else:
        batches.build(settings, draft)
    environments.build(scene)
    for name in sorted(set(scene.types) - scene.used):
        accepted = "the name or id of an environment in the files"
        settings.problems.append(Problem("--environment", repr(name), accepted))
    trainer.build(settings, draft)
    engines.build(settings, draft)
    runtime.build(settings, draft)
    for key in KEYS:
        if key.direct and "[]" not in key.key:
            draft.put(key.to, settings.value(key.key), key.key)
        elif key.direct:
            _in_every_item(settings, draft, key.key, key.to)


def _in_every_item(settings: Settings, draft: ManifestDraft, key: str, to: str) -> None:
    table = key.partition("[]")[0]
    for index in range(settings.items(table)):
        here = key.replace("[]", f"[{index}]", 1)
        draft.put(to.replace("[]", f"[{index}]", 1), settings.value(here), here)


def _leftovers(settings: Settings, draft: ManifestDraft) -> None:
    for where, key in settings.unread():
        text = f"not used together with the other keys ({key.note})" if key.to else key.note
        draft.say(Kind.NO_COUNTERPART, where, text)
    for key in settings.not_set():
        if settings.supervised and not key.key.startswith("trainer."):
            continue
        draft.tell(Kind.DEFAULT, key.key.removesuffix(".*"), f"{found_text(key.default)} in prime-rl; {key.note}")
    draft.tell(Kind.DEFAULT, "spec.stallPolicy.noStepFor", NO_STALL)
    text = "in a cluster: claimName of a claim that is there, or size and storageClassName of one to be made (500Gi)"
    draft.tell(Kind.TO_FILL_IN, "spec.storage", text)


def _refusals(settings: Settings, draft: ManifestDraft) -> list[Problem]:
    """Everything that is wrong."""
    problems = parsed(draft.document)[1]
    wrong = list(settings.problems)
    named = {problem.path for problem in wrong}
    for problem in problems:
        source = draft.source(problem.path)
        path = f"{source} ({problem.path})" if source else problem.path
        # Beside problems of keys, what the manifest lacks may only be missing because of them.
        if source not in named and (source or not named):
            wrong.append(Problem(path, problem.found, problem.accepted, problem.reason))
    return wrong


def converted(tree: dict[str, Any], options: Options) -> Conversion:
    """The manifest of a tree of keys, which is changed on the way.

    Raises:
        ConversionError: with every problem of the keys and of the manifest.
    """
    if forms := _unknown_forms(tree):
        raise ConversionError(forms)
    settings = Settings(tree, one_spelling(tree), _TABLE)
    draft = ManifestDraft(settings, keep_going=options.keep_going)
    _checked_keys(settings, draft)
    _built(settings, draft, options)
    if problems := _refusals(settings, draft):
        raise ConversionError(problems)
    _leftovers(settings, draft)
    order = list(Kind)
    lines = tuple(sorted(draft.lines, key=lambda line: order.index(line.kind)))
    return Conversion(EchoRLRun.model_validate(draft.document), lines)


def convert(files: Sequence[tuple[str | None, Path]], options: Options | None = None) -> Conversion:
    """The manifest of the files of a run.

    Args:
        files: each with its section (``trainer``, ``orchestrator``, ``inference``) or None; base first.
        options: what the user adds.

    Raises:
        ConversionError: with every problem that was found.
    """
    return converted(read_layers(files), options or Options())
