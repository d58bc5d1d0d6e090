"""Operators as processes of their own: two that would lead, one that hangs, is killed, or starts in an outage."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import yaml

from echorl_operator.kube.election import EXIT_LOST_LEADERSHIP
from echorl_operator.kube.resources import LEASE
from echorl_testing.kube import faults
from echorl_testing.kube.fault_proxy import FaultProxy
from echorl_testing.operator.fault_campaign import RECOVERED_S, Course, Scenario, unharmed
from echorl_testing.operator.run_life import AGENT, Field, Life
from echorl_testing.ports import free_ports

TAKEN_OVER_S = 20.0


class _Process:
    """``python -m echorl_operator``, started again as a kubelet does when it ends by itself. Its output is kept."""

    def __init__(self, kubeconfig: Path, namespace: str, folder: Path, *extra: str) -> None:
        key, settings = folder / "master-key", folder / f"{kubeconfig.stem}-settings.yaml"
        if not key.exists():
            key.write_text(secrets.token_hex(32))
            key.chmod(0o600)
        settings.write_text(yaml.safe_dump({"masterKeyPath": str(key)}))
        probes, metrics = free_ports(2)
        self._log = kubeconfig.with_suffix(".log")
        self._command = [
            *(sys.executable, "-P", "-m", "echorl_operator", "--settings", str(settings)),
            *("--kubeconfig", str(kubeconfig), "--namespace", namespace, "--bind", "127.0.0.1"),
            *("--probe-port", str(probes), "--metrics-port", str(metrics), *extra),
        ]
        self.codes: list[int] = []
        """Exit codes so far."""
        self.restarts = True
        """Whether it is started again."""
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )

    def send(self, number: signal.Signals, *, last: bool = False) -> None:
        """A signal; after a ``last`` one it is not started again."""
        self.restarts = self.restarts and not last
        self._process.send_signal(number)

    async def mind(self) -> None:
        """Notice ends and start it again, until cancelled."""
        while True:
            code = await asyncio.to_thread(_ended_within, self._process, 0.5)
            if code is None:
                continue
            self.codes.append(code)
            if not self.restarts:
                return
            self._process = self._start()

    def end(self) -> None:
        """For good."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait()


def _ended_within(process: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


@asynccontextmanager
async def _process(kubeconfig: Path, namespace: str, folder: Path, *extra: str) -> AsyncIterator[_Process]:
    process = _Process(kubeconfig, namespace, folder, *extra)
    minding = asyncio.create_task(process.mind(), name=f"process of {namespace}")
    try:
        yield process
    finally:
        minding.cancel()
        await asyncio.gather(minding, return_exceptions=True)
        process.end()


class _Candidate:
    """One process with a proxy of its own, which tells its writes from the others'."""

    def __init__(self, proxy: FaultProxy, process: _Process) -> None:
        self.proxy, self.process = proxy, process

    def renewals(self) -> list[float]:
        """When it took or renewed the lease."""
        leases = [one for one in self.proxy.records if one.request.resource == LEASE.plural and one.request.is_write]
        done = [one.request for one in leases if one.upstream_status is not None and one.upstream_status < 300]
        return [one.at for one in done if one.json()["spec"].get("holderIdentity")]

    def waits(self) -> bool:
        """Whether it could lead."""
        return any(one.request.verb == "watch" for one in self.proxy.records)


class _Candidates:
    """All that would lead one run's operator."""

    def __init__(self, field: Field, life: Life) -> None:
        self._field, self._life = field, life
        self.all: list[_Candidate] = []

    async def add(self, stack: AsyncExitStack) -> _Candidate:
        """One more; returns when it could lead."""
        proxy = await stack.enter_async_context(FaultProxy(self._field.upstream))
        name = f"{self._life.namespace}-{len(self.all)}"
        kubeconfig = proxy.write_kubeconfig(self._field.folder / f"{name}.kubeconfig")
        process = await stack.enter_async_context(_process(kubeconfig, self._life.namespace, self._field.folder))
        added = _Candidate(proxy, process)
        self.all.append(added)
        await self._life.until("it is ready to lead", added.waits)
        return added

    def _terms(self) -> list[tuple[float, _Candidate]]:
        return sorted(((at, one) for one in self.all for at in one.renewals()), key=lambda term: term[0])

    async def leader(self, *, but: _Candidate | None = None) -> _Candidate:
        """Who leads, once it is another one than ``but``."""

        def found() -> bool:
            terms = self._terms()
            return bool(terms) and terms[-1][1] is not but

        await self._life.until("another one leads", found)
        return self._terms()[-1][1]

    def usurped(self) -> list[str]:
        """Writes of one while another one held the lease."""
        terms = self._terms()
        found = []
        for one in self.all:
            for record in one.proxy.writes_by(AGENT):
                holder = [holds for at, holds in terms if at <= record.request.at][-1:]
                if holder != [one]:
                    found.append(f"{record.request.verb} {record.request.path}")
        return found


async def _leaders(course: Course) -> str:
    """One hangs, thaws and must not write; its successor is killed; another one goes on."""
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(course.field.life())
        candidates = _Candidates(course.field, life)
        await candidates.add(stack)
        await candidates.add(stack)
        await life.create()
        await life.running(1)
        hung = await candidates.leader()
        hung.process.send(signal.SIGSTOP, last=True)
        started = time.monotonic()
        successor = await candidates.leader(but=hung)
        after_hanging = time.monotonic() - started
        await life.lose_a_rank(1)
        hung.process.send(signal.SIGCONT)
        await life.until("the one that hung has ended", lambda: hung.process.codes)
        assert hung.process.codes[-1] == EXIT_LOST_LEADERSHIP
        await life.running(2)
        await candidates.add(stack)
        successor = await candidates.leader(but=hung)
        successor.process.send(signal.SIGKILL, last=True)
        started = time.monotonic()
        await candidates.leader(but=successor)
        after_death = time.monotonic() - started
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        assert candidates.usurped() == []
        bound = TAKEN_OVER_S - RECOVERED_S + await course.patience_s()
        for took in (after_hanging, after_death):
            assert took <= bound, f"{took:.0f} s until another one leads"
        return (
            f"another one leads {after_hanging:.0f} s after SIGSTOP, {after_death:.0f} s after SIGKILL; thawed, the "
            "old one ends with code 70; nobody writes while another one holds the lease"
        )


async def _polite(course: Course) -> str:
    """A leader that is told to end lets the next one lead at once."""
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(course.field.life())
        candidates = _Candidates(course.field, life)
        await candidates.add(stack)
        await candidates.add(stack)
        await life.create()
        await life.running(1)
        first = await candidates.leader()
        first.process.send(signal.SIGTERM, last=True)
        started = time.monotonic()
        await candidates.leader(but=first)
        took = time.monotonic() - started
        await life.until("it has ended", lambda: first.process.codes)
        await life.lose_a_rank(1)
        await life.running(2)
        await life.finish()
        unharmed(life, [1, 1, 2, 2])
        assert candidates.usurped() == []
        return f"another one leads after {took:.0f} s; it ends with code {first.process.codes[-1]}"


async def _killed_processes(course: Course) -> str:
    """SIGKILL at writes early, in the midst and late; the next process goes on."""
    numbers, alone = (3, 26, 9, 14), ("--no-election",)
    async with course.field.life() as life:
        struck = []

        async def mind() -> None:
            for number in numbers:
                death = faults.hang(faults.writes, after=True, nth=number)
                with life.proxy.fault(death):
                    async with _process(life.kubeconfig, life.namespace, course.field.folder, *alone) as process:
                        await death.struck.wait()
                        process.send(signal.SIGKILL, last=True)
                        struck.append(number)
            async with _process(life.kubeconfig, life.namespace, course.field.folder, *alone):
                await asyncio.Event().wait()

        minding = asyncio.create_task(mind())
        try:
            await life.create()
            await life.running(1)
            await life.lose_a_rank(1)
            await life.running(2)
            await life.finish()
            unharmed(life, [1, 1, 2, 2])
        finally:
            minding.cancel()
            await asyncio.gather(minding, return_exceptions=True)
        assert len(struck) >= 3, struck
        return f"{len(struck)} processes killed, each at a write; the next one goes on"


async def _starts_in_an_outage(course: Course) -> str:
    """A process that starts while the API server answers 503 is there when it answers again."""
    async with AsyncExitStack() as stack:
        life = await stack.enter_async_context(course.field.life())
        await life.create()
        with life.proxy.fault(faults.fail(503)) as outage:
            process = await stack.enter_async_context(_process(life.kubeconfig, life.namespace, course.field.folder))
            await life.until("it has asked", lambda: outage.hits > 0)
            await course.hold(life)
            assert not process.codes, "it has ended, and a kubelet would start it later and later"
        started = time.monotonic()
        await life.running(1, await course.patience_s())
        took = time.monotonic() - started
        await life.finish()
        unharmed(life, [1, 1])
        return f"attempt 1 runs {took:.0f} s after the API server is back"


LEADERS: Mapping[str, Scenario] = {
    "two would lead; the leader hangs, its successor is killed": _leaders,
    "the leader is told to end": _polite,
    "processes are killed at writes": _killed_processes,
    "a process starts in an outage": _starts_in_an_outage,
}
