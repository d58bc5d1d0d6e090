"""``echorl why RUN``: one causal sentence, and below it what it rests on."""

import asyncio
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from echorl_cli.cluster.access import Cluster, carry_out
from echorl_cli.cluster.evidence import Evidence, evidence, short_of
from echorl_cli.cluster.notation import Notation
from echorl_cli.cluster.operator_presence import differing, expired_lease, unseen
from echorl_cli.cluster.options import ContextOption, KubeconfigOption, NamespaceOption
from echorl_cli.cluster.reading import Nodes, leases, nodes, observe
from echorl_cli.cluster.sentence import phase_of, sentence
from echorl_cli.cluster.slow import is_folder, of_cluster, of_folder
from echorl_operator.diagnosis import capacity
from echorl_operator.diagnosis.obstacles import Figures
from echorl_operator.observed.world import Observed

LOOK_AGAIN_S = 6.0
"""How long an operator that seems not to look is given to prove that it does."""
_POLL_S = 0.5


def why_command(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of an EchoRLRun; with --slow also a run's folder, as ./RUN_DIR.")
    ],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    output: Annotated[Notation, typer.Option("--output", "-o", help="Notation.")] = Notation.TEXT,
    *,
    slow: Annotated[bool, typer.Option("--slow", help="Say what the bottleneck is, and which field moves it.")] = False,
) -> None:
    """Say in one sentence why a run is as it is, and what that rests on: pods, the scheduler's words, events."""
    if is_folder(run):
        if not slow:
            raise typer.BadParameter(f"RUN: found a path, {run[:200]!r}; accepted: a name, or a path with --slow")
        typer.echo(of_folder(Path(run), output), nl=False)
        return

    async def work(cluster: Cluster) -> str:
        return await (of_cluster if slow else _answer)(cluster, run, output)

    carry_out(work, kubeconfig=kubeconfig, context=context, namespace=namespace)


async def _answer(cluster: Cluster, name: str, output: Notation) -> str:
    seen = await _seen(cluster, name)
    not_looking = unseen(seen.run, seen.observed.now)
    if not not_looking and (differing(seen.observed) or expired_lease(seen.leases, seen.observed.now)):
        seen, not_looking = await _look_again(cluster, seen)
    observed = seen.observed
    lacking = short_of(observed)
    room = await nodes(cluster) if lacking else None
    reason = sentence(observed, not_looking=not_looking, figures=_figures(room))
    if ended := expired_lease(seen.leases, observed.now):
        reason = f"{reason} ({ended}: this may be old)"
    rooms = {} if room is None else {resource: room.rooms(resource) for resource in lacking}
    return _written(observed, reason, evidence(observed, rooms, seen.leases, sorted(cluster.withheld)), output)


@dataclass(frozen=True)
class _Seen:
    run: dict[str, Any]
    observed: Observed
    leases: list[dict[str, Any]]


async def _seen(cluster: Cluster, name: str) -> _Seen:
    run: dict[str, Any] = msgspec.json.decode(await cluster.run(name))
    return _Seen(run, *await asyncio.gather(observe(cluster, run), leases(cluster)))


async def _look_again(cluster: Cluster, before: _Seen) -> tuple[_Seen, str]:
    """Status lags by seconds, and clocks differ: only what stays as it is shows that nobody looks."""
    until = time.monotonic() + LOOK_AGAIN_S
    while True:
        await asyncio.sleep(_POLL_S)
        now = await _seen(cluster, before.run["metadata"]["name"])
        if now.leases != before.leases:
            # Somebody renews them, whatever our clock says.
            now = replace(now, leases=[])
        wrong = differing(now.observed)
        if now.run.get("status") != before.run.get("status") or not (wrong or now.leases):
            return now, ""
        if time.monotonic() > until:
            break
    if not wrong:
        return now, ""
    asked = f"is the operator at work, and does it watch namespace {cluster.namespace}?"
    return now, f"the operator does not look at this run: its status says {wrong}; {asked}"


def _figures(room: Nodes | None) -> Figures | None:
    if room is None:
        return None
    return lambda resource, wanted: capacity.words(resource, wanted, room.rooms(resource))


def _written(observed: Observed, reason: str, pieces: list[Evidence], output: Notation) -> str:
    if output is Notation.TEXT:
        return "".join(f"{line}\n" for line in (reason, *(f"  {piece}" for piece in pieces)))
    answer = {
        "name": observed.run.key.name,
        "namespace": observed.run.key.namespace,
        "phase": str(phase_of(observed.run.status)),
        "why": reason,
        "evidence": [{"kind": piece.kind, "of": piece.of, "text": piece.text} for piece in pieces],
    }
    return f"{json.dumps(answer, indent=2, ensure_ascii=False)}\n"
