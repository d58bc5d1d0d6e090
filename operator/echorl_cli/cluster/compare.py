"""``echorl render --diff RUN``: what this version, or an edited manifest, would change of a run that is there."""

import json
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from echorl_cli.cluster.access import Cluster, Told, carry_out
from echorl_cli.cluster.difference import difference
from echorl_cli.cluster.outcome import outcome, words
from echorl_cli.yaml_text import parse_yaml
from echorl_core.names import ExitCode
from echorl_manifest import EchoRLRun, Problem
from echorl_manifest.validation import parsed
from echorl_operator import names
from echorl_operator.children import Rendering, cluster_problems, from_revision, render
from echorl_operator.children.target import Object
from echorl_operator.kube import errors
from echorl_operator.kube.resources import of_kind
from echorl_operator.observed import decode
from echorl_operator.observed.memory import Memory
from echorl_operator.observed.runs import RunRecord
from echorl_operator.plan.elasticity import applied, counts, with_trainer_pods
from echorl_operator.settings import Settings
from echorl_operator.settings_file import read_settings, settings_of

DIFFERS = 1
UNREACHABLE = 69
"""The cluster does not answer, or not to this user: ``EX_UNAVAILABLE``. 1 means something else here."""
BROKEN = 70
"""A fault of this command: ``EX_SOFTWARE``."""
SETTINGS_MAP, SETTINGS_KEY = "echorl-operator-settings", "settings.yaml"
"""Where the chart puts the installation's settings."""


@dataclass(frozen=True)
class Edit:
    """A manifest that would take the stored one's place."""

    file: Path
    run: EchoRLRun


def compare(
    name: str,
    edit: Edit | None,
    *,
    settings: Path | None,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Print what differs, and end with 0 if nothing does, 1 if something does, above 1 if that cannot be told."""
    differs = False

    async def work(cluster: Cluster) -> str:
        nonlocal differs
        differs, text = await _compared(cluster, name, edit, settings)
        return text

    try:
        carry_out(work, kubeconfig=kubeconfig, context=context, namespace=namespace)
    except typer.Exit as error:
        raise typer.Exit(UNREACHABLE if error.exit_code == ExitCode.CRASH else error.exit_code) from error
    except Exception as error:
        # Python's own code for it is 1, which would say that something differs.
        traceback.print_exc()
        raise typer.Exit(BROKEN) from error
    if differs:
        raise typer.Exit(DIFFERS)


async def _compared(cluster: Cluster, name: str, edit: Edit | None, file: Path | None) -> tuple[bool, str]:
    record = decode.run_from_object(json.loads(await cluster.run(name)))
    if edit is not None and edit.run.metadata.name != name:
        named = edit.run.metadata.name
        raise Told(f"{edit.file}: metadata.name: found {named!r}, accepted: {name!r}", ExitCode.BAD_INPUT)
    memory = Memory.of(record.status)
    revision, frozen = await _frozen(cluster, record, memory)
    settings = await _settings(cluster, file)
    run = _stored(record) if edit is None else edit.run
    size = memory.gang_size
    if size is not None and counts(size, run.spec.model_dump(mode="json", by_alias=True)):
        run = run.model_copy(update={"spec": with_trainer_pods(run.spec, size.pods)})
    if problems := cluster_problems(run, settings):
        raise _unfit(f"run {name}" if edit is None else str(edit.file), problems)
    anew = render(run, uid=record.uid, namespace=record.key.namespace, generation=record.generation, settings=settings)
    spec: Mapping[str, Any] = applied(record.spec, size) if edit is None else anew.spec
    now = outcome(record, revision, frozen, spec, settings=settings, now=time.time())
    version = settings.operator_version
    old, new = f"attempt {memory.attempt}", f"EchoRL {version}" if edit is None else str(edit.file)
    try:
        diff = difference(frozen, anew, memory.attempt, old=old, new=new)
    except ValueError as error:
        message = f"run {name}: what its attempt was rendered from is refused now: {error}"
        raise Told(message, ExitCode.BAD_INPUT) from error
    head = f"run {name}: attempt {memory.attempt} was rendered by EchoRL {frozen.operator_version}; this is {version}"
    source = "the manifest" if edit is None else str(edit.file)
    if not diff and not now.changes:
        return False, f"{head}\n{source}: nothing differs\n"
    what = f"changes {words(now.changes)}" if now.changes else "changes nothing itself"
    none = "" if diff else "no role's config and no child differs\n"
    return True, f"{head}\n{source}: {what}\n{now.sentence}\n{none}{diff}"


async def _frozen(cluster: Cluster, record: RunRecord, memory: Memory) -> tuple[Object, Rendering]:
    name = record.key.name
    if not memory.revision:
        raise Told(f"run {name} has begun no attempt: there is nothing to compare with", ExitCode.BAD_INPUT)
    try:
        body = json.loads(await cluster.get(of_kind("apps/v1", "ControllerRevision"), memory.revision))
        return body, from_revision(body)
    except errors.NotFound as error:
        message = f"run {name}: its ControllerRevision {memory.revision} is gone: there is nothing to compare with"
        raise Told(message, ExitCode.BAD_INPUT) from error
    except ValueError as error:
        raise Told(str(error), ExitCode.BAD_INPUT) from error


async def _settings(cluster: Cluster, file: Path | None) -> Settings:
    """The installation's: of a file, else of the chart's ConfigMap, else the defaults, which is said."""
    default = read_settings(None)
    try:
        if file is not None:
            return read_settings(file, parse_yaml)
        places = dict.fromkeys((cluster.namespace, default.operator_namespace))
        for place in places:
            body = await _map(cluster, place)
            if SETTINGS_KEY in body:
                return settings_of(body[SETTINGS_KEY], f"{place}/{SETTINGS_MAP}", parse_yaml)
    except ValueError as error:
        raise Told(str(error), ExitCode.BAD_INPUT) from error
    why = "you may not read it" if cluster.withheld else "there is none"
    typer.echo(
        f"settings of the installation: looked for the ConfigMap {SETTINGS_MAP} in {', '.join(places)}, {why}; "
        "compared with the defaults, so images and resources may differ for no other reason (--settings FILE)",
        err=True,
    )
    return default


async def _map(cluster: Cluster, place: str) -> dict[str, str]:
    try:
        body = json.loads(await cluster.get(of_kind("v1", "ConfigMap"), SETTINGS_MAP, place))
    except errors.NotFound:
        return {}
    except errors.Forbidden:
        cluster.withheld.add("configmaps")
        return {}
    return body.get("data") or {}


def _stored(record: RunRecord) -> EchoRLRun:
    """The stored manifest, by today's rules."""
    body = {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": names.KIND,
        "metadata": {"name": record.key.name, "namespace": record.key.namespace},
        "spec": record.spec,
    }
    run, problems = parsed(body)
    if run is None:
        raise _unfit(f"run {record.key.name}", problems)
    return run


def _unfit(source: str, problems: list[Problem]) -> Told:
    """New attempts of a run whose manifest is refused go on as it was rendered last."""
    return Told("\n".join(f"{source}: {problem}" for problem in problems), ExitCode.BAD_INPUT)
