"""From runs created to all their children applied: the operator, and a bare client that applies the same."""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from benchmarks.operator_scale import bare, submitting
from benchmarks.operator_scale.ground import Ground, ground
from benchmarks.operator_scale.operating import OperatorProcess, Writes, operating
from benchmarks.operator_scale.processes import cpu_seconds
from benchmarks.operator_scale.submitting import Client, Shape, client
from benchmarks.operator_scale.watching import Sightings, watching
from echorl_operator.kube.connection import Call
from echorl_operator.kube.lists import OURS
from echorl_operator.kube.resources import CHILDREN, POD
from echorl_operator.observed.runs import RunKey

WARM_UP = 4
_DEADLINE_S = 900.0
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_DIGEST = 10


@dataclass
class Side:
    """One repetition of one side."""

    side: str
    runs: int
    applied_s: float
    """From the first run's creation to the last child of the last run."""
    children_writes: float
    client_cpu_s: float
    """Of the operator or the bare client, until all children were applied."""
    cpu_s: dict[str, float]
    """Of everything on the machine that takes part, until then."""
    created_s: float
    """Until the last run was created."""
    writes: dict[str, float] = field(default_factory=dict)
    """Of the operator until it had nothing left to do."""
    ready_s: float | None = None
    """Until all pods were ready."""
    settled_cpu_s: float | None = None
    """Of the operator until it had nothing left to do."""
    children: int = 0
    """That are there in the end."""


def _warm(where: Sequence[str]) -> list[RunKey]:
    return submitting.keys(9000, WARM_UP, where)


async def operator_side(runs: int, shape: Shape, where: Sequence[str], folder: Path, profile: Path | None) -> Side:
    """The operator is up and leads; then runs are created."""
    async with (
        ground(list(where), (runs + WARM_UP) * shape.pods) as place,
        client(place.kubeconfig) as user,
        watching(user.connection) as seen,
        operating(place.kubeconfig, folder, "operator", profile=profile) as operator,
    ):
        seen.check = operator.check
        await operator.leads()
        await user.create(_warm(where), shape, lambda *_: None)
        await _all_ready(seen, WARM_UP * shape.pods)
        await operator.settled()
        return await _measured(_Parts(operator, place, user, seen), submitting.keys(0, runs, where), shape)


@dataclass(frozen=True)
class _Parts:
    operator: OperatorProcess
    place: Ground
    user: Client
    seen: Sightings


async def _measured(parts: _Parts, runs: Sequence[RunKey], shape: Shape) -> Side:
    operator, place, user, seen = parts.operator, parts.place, parts.user, parts.seen
    before, cpu_before, mine = await operator.read(), place.cpu_seconds(), operator.cpu_seconds()
    bench = time.process_time()
    started = time.monotonic()
    await user.create(runs, shape, lambda *_: None)
    created = time.monotonic()
    wanted = len(runs) + WARM_UP
    await seen.until("all orchestrators are made", lambda: len(seen.orchestrators) >= wanted, _DEADLINE_S)
    applied = max(seen.orchestrators.values())
    client_cpu_s = operator.cpu_seconds() - mine
    at_applied, cpu = await operator.read(), _spent(place, cpu_before)
    cpu |= {"operator": client_cpu_s, "benchmark": time.process_time() - bench}
    await _all_ready(seen, wanted * shape.pods)
    settled = await operator.settled()
    return Side(
        side="operator",
        runs=len(runs),
        applied_s=applied - started,
        children_writes=Writes.of(at_applied.calls, before.calls).children,
        client_cpu_s=client_cpu_s,
        cpu_s=cpu,
        created_s=created - started,
        writes=asdict(Writes.of(settled.calls, before.calls)),
        ready_s=max(seen.ready.values()) - started,
        settled_cpu_s=operator.cpu_seconds() - mine,
        children=await _count(user, runs, shape),
    )


async def bare_side(side: str, runs: int, shape: Shape, where: Sequence[str], folder: Path) -> Side:
    """The bare client (``bare`` or ``staged``) is up; then runs are created, and it is told of each."""
    bodies = folder / "bodies.json"
    bodies.write_text(json.dumps([asdict(one) for one in bare.recorded(shape)]))
    async with (
        ground(list(where), (runs + WARM_UP) * shape.pods) as place,
        client(place.kubeconfig) as user,
        # As on the other side: it costs the API server something.
        watching(user.connection),
    ):
        bench = _Bare(side, place, user, bodies)
        await _bare(bench, _warm(where), shape)
        return await _bare(bench, submitting.keys(0, runs, where), shape)


@dataclass(frozen=True)
class _Bare:
    side: str
    place: Ground
    user: Client
    bodies: Path


async def _bare(parts: _Bare, runs: Sequence[RunKey], shape: Shape) -> Side:
    place, user = parts.place, parts.user
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "TERM", sys.executable, "-m", f"benchmarks.operator_scale.{parts.side}"),
        *(str(place.kubeconfig), str(parts.bodies), str(len(runs)), str(shape.trainers)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None  # noqa: S101 - a pipe was asked for
    assert process.stdout is not None  # noqa: S101
    stdin = process.stdin
    # It has imported what it needs and waits for runs.
    await asyncio.sleep(3.0)
    cpu_before, mine, bench = place.cpu_seconds(), cpu_seconds(process.pid), time.process_time()
    started = time.monotonic()
    await user.create(runs, shape, lambda key, uid: stdin.write(f"{key.namespace} {key.name} {uid}\n".encode()))
    created = time.monotonic()
    said = json.loads(await asyncio.wait_for(process.stdout.readline(), _DEADLINE_S))
    cpu = _spent(place, cpu_before)
    await process.wait()
    client_cpu_s = float(said["cpu_s"]) - mine
    cpu |= {parts.side: client_cpu_s, "benchmark": time.process_time() - bench}
    return Side(
        side=parts.side,
        runs=len(runs),
        applied_s=said["ended"] - started,
        children_writes=said["writes"],
        client_cpu_s=client_cpu_s,
        cpu_s=cpu,
        created_s=created - started,
        children=await _count(user, runs, shape),
    )


def _spent(place: Ground, before: dict[str, float]) -> dict[str, float]:
    return {name: now - before.get(name, 0.0) for name, now in place.cpu_seconds().items()}


async def _all_ready(seen: Sightings, pods: int) -> None:
    await seen.until(f"{pods} pods are ready", lambda: len(seen.ready) >= pods, _DEADLINE_S)


async def _count(user: Client, runs: Sequence[RunKey], shape: Shape) -> int:
    """How many children these runs have.

    Raises:
        RuntimeError: these are not the children that the build package makes.
    """
    of_runs, found = set(runs), set[tuple[str, str, str]]()
    for resource in (POD, *CHILDREN):
        query = {"labelSelector": OURS, "resourceVersion": "0"}
        call = Call("list", resource.path(None), resource.plural, query, accept=_METADATA, timeout_s=120)
        for item in msgspec.json.decode(await user.connection.request(call))["items"] or ():
            meta = item["metadata"]
            owner = RunKey(meta["namespace"], meta["labels"].get("echorl.dev/run", ""))
            if owner in of_runs:
                found.add((resource.plural, owner.namespace, _name(resource.plural, meta["name"])))
    expected = {(write.resource, key.namespace, name) for key in runs for write, name in _names(shape, key)}
    missing = expected - found
    extra = {one for one in found - expected if one[0] not in ("pods", "controllerrevisions")}
    if missing or extra:
        raise RuntimeError(f"children: missing {sorted(missing)[:5]}, not expected {sorted(extra)[:5]}")
    return len(expected)


def _names(shape: Shape, key: RunKey) -> list[tuple[bare.Write, str]]:
    writes = bare.recorded(shape) if shape not in _recorded else _recorded[shape]
    _recorded[shape] = writes
    found = []
    for write in writes:
        name = json.loads(write.body)["metadata"]["name"].replace(bare.EXAMPLE.name, key.name)
        found.append((write, _name(write.resource, name)))
    return found


_recorded: dict[Shape, list[bare.Write]] = {}


def _name(resource: str, name: str) -> str:
    """ConfigMaps' names end in a digest of their content, which has the run's name in it."""
    return name[:-_DIGEST] if resource == "configmaps" else name
