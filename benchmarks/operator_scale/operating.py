"""The operator as the process that it is in a cluster, and what its metrics say."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.operator_scale import processes
from echorl_operator.metrics import PREFIX

WORKERS: Final = 16
"""The operator's default; the bare client has as many."""
WRITES = frozenset({"create", "update", "apply", "patch", "delete"})
LEASE_NAMESPACE = "default"
_END_S = 20.0

Calls = Mapping[tuple[str, str], float]
"""Calls of the API server by verb and resource."""


@dataclass(frozen=True)
class Writes:
    """Calls that write, by what they are for. Failed ones count."""

    children: float
    gates: float
    status: float
    events: float
    others: float
    """Deletions and whatever has no row of its own; renewals of the lease are not counted."""

    @classmethod
    def of(cls, calls: Calls, before: Calls) -> "Writes":
        """Of the calls between two readings."""
        found: Counter[str] = Counter()
        for (verb, resource), count in calls.items():
            if verb in WRITES and resource != "leases":
                found[_purpose(verb, resource)] += count - before.get((verb, resource), 0.0)  # type: ignore[assignment]
        return cls(**{name: float(found[name]) for name in cls.__dataclass_fields__})

    @property
    def total(self) -> float:
        """All of them."""
        return self.children + self.gates + self.status + self.events + self.others


def _purpose(verb: str, resource: str) -> str:
    if resource == "echorlruns/status":
        return "status"
    if resource == "events":
        return "events"
    if (verb, resource) == ("patch", "pods"):
        return "gates"
    return "children" if verb in ("create", "apply") else "others"


@dataclass
class Reading:
    """One scrape of /metrics."""

    calls: dict[tuple[str, str], float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    """Sum over labels, by sample name without the common prefix."""


class OperatorProcess:
    """``python -m echorl_operator``; as leader or in reserve."""

    def __init__(self, process: asyncio.subprocess.Process, metrics_port: int, started: float) -> None:
        self._process, self._url = process, f"http://127.0.0.1:{metrics_port}"
        self.started = started
        """Monotonic seconds."""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @classmethod
    async def start(
        cls, kubeconfig: Path, folder: Path, name: str, *, profile: Path | None = None
    ) -> "OperatorProcess":
        """Start one; returns before it is ready. ``profile``: where to write what cProfile saw."""
        key, settings = folder / "master-key", folder / "settings.yaml"
        key.write_text("a master key of benchmarks, long enough")
        settings.write_text(f"masterKeyPath: {key}\n")
        ports = _free_ports(2)
        command = [
            *("setpriv", "--pdeathsig", "TERM", sys.executable),
            *(() if profile is None else ("-m", "cProfile", "-o", str(profile))),
            *("-m", "echorl_operator", "--settings", str(settings), "--kubeconfig", str(kubeconfig)),
            *("--lease-namespace", LEASE_NAMESPACE, "--bind", "127.0.0.1", "--workers", str(WORKERS)),
            *("--probe-port", str(ports[0]), "--metrics-port", str(ports[1])),
        ]
        environment = {**os.environ, "POD_NAME": name}
        started = time.monotonic()
        with (folder / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environment)
        return cls(process, ports[1], started)

    async def read(self) -> Reading:
        """Scrape its metrics.

        Raises:
            OSError: it does not answer (yet).
        """
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{self._url}/metrics") as reply:
            text = await reply.text()
        found = Reading()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(f"{PREFIX}_")
                found.values[name] = found.values.get(name, 0.0) + sample.value
                if name == "api_requests_total":
                    key = (sample.labels["verb"], sample.labels["resource"])
                    found.calls[key] = found.calls.get(key, 0.0) + sample.value
        return found

    def check(self) -> None:
        """Look whether it is there.

        Raises:
            RuntimeError: it has ended.
        """
        if self._process.returncode is not None:
            raise RuntimeError(f"the operator ended with {self._process.returncode}: see its log")

    async def until(self, what: str, value: str, at_least: float, seconds: float) -> float:
        """Wait until a metric has reached a value; monotonic seconds when that was seen.

        Raises:
            RuntimeError: it has ended, or the value is not reached.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.check()
            with suppress(OSError, aiohttp.ClientError):
                if (await self.read()).values.get(value, 0.0) >= at_least:
                    return time.monotonic()
            await asyncio.sleep(0.02)
        raise RuntimeError(f"{what}: not within {seconds:.0f} s")

    async def leads(self, seconds: float = 60.0) -> float:
        """Wait until it leads; when that was seen."""
        return await self.until("the operator leads", "leader", 1.0, seconds)

    async def ready(self, seconds: float = 60.0) -> None:
        """Wait until /readyz says that it could work at once, as leader or in reserve."""
        async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
            while True:
                with suppress(OSError, aiohttp.ClientError):
                    async with session.get(f"{self._url}/readyz") as reply:
                        if reply.status == 200:
                            return
                await asyncio.sleep(0.1)

    async def settled(self, quiet_s: float = 5.0, seconds: float = 600.0) -> Reading:
        """Wait until it has written nothing for ``quiet_s``."""
        deadline = time.monotonic() + seconds
        before, since = await self.read(), time.monotonic()
        while time.monotonic() < deadline:
            self.check()
            await asyncio.sleep(0.5)
            now = await self.read()
            if Writes.of(now.calls, before.calls).total or now.values.get("queue_depth"):
                before, since = now, time.monotonic()
            elif time.monotonic() - since > quiet_s:
                return now
        raise RuntimeError(f"the operator still writes after {seconds:.0f} s")

    def cpu_seconds(self) -> float:
        """CPU time so far."""
        return processes.cpu_seconds(self.pid)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self._process.returncode is None:
            self._process.send_signal(number)
            try:
                async with asyncio.timeout(_END_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        return self._process.returncode or 0


@asynccontextmanager
async def operating(
    kubeconfig: Path, folder: Path, name: str, *, profile: Path | None = None
) -> AsyncIterator[OperatorProcess]:
    """One process, ended at the end."""
    process = await OperatorProcess.start(kubeconfig, folder, name, profile=profile)
    try:
        yield process
    finally:
        await process.end()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports
