"""Health by progress: asks every process whether it gets on, and says which one has not for too long."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from echorl_cli.local.launch import Limits, LocalRun
from echorl_cli.local.processes import Child
from echorl_core.names import Role
from echorl_core.wire.run_state import EngineView


@dataclass
class Record:
    """What is known of one process's health; times are monotonic seconds."""

    since: float
    """When it was first asked."""
    last_good: float | None = None
    problem: str = "has not answered yet"

    def note(self, problem: str | None, now: float) -> None:
        """Take over one answer; None is a good one."""
        if problem is None:
            self.last_good = now
        else:
            self.problem = problem

    def verdict(self, role: Role, limits: Limits, now: float) -> str | None:
        """Why the process counts as hung; None while it does not."""
        if self.last_good is None:
            limit, silent = limits.start, now - self.since
        else:
            limit = limits.engine_unhealthy if role is Role.INFERENCE else limits.unhealthy
            silent = now - self.last_good
        return None if silent <= limit else f"unhealthy for {silent:.0f} s (limit {limit:.0f} s): {self.problem}"


class Quarantines:
    """Engines that the orchestrator keeps from traffic and cannot bring back; a fresh start can."""

    def __init__(self, limit_s: float) -> None:
        """``limit_s``: time that the orchestrator has for its own tries."""
        self._limit_s = limit_s
        self._since: dict[str, float] = {}

    def overdue(self, engines: Sequence[EngineView], now: float) -> dict[str, str]:
        """Names of engines that have been out for too long, and why. ``engines`` is of ``GET /state``."""
        reasons = {}
        for engine in engines:
            name = engine.name
            if engine.state == "quarantined":
                self._since.setdefault(name, now)
            elif engine.state != "syncing":  # that is one of the tries
                self._since.pop(name, None)
            if name in self._since and now - self._since[name] > self._limit_s:
                reasons[name] = f"quarantined for {now - self._since.pop(name):.0f} s: {engine.error}"
        return reasons


class HealthWatch:
    """Polls the processes of a run."""

    def __init__(
        self,
        plan: LocalRun,
        session: aiohttp.ClientSession,
        living: Callable[[], Sequence[Child]],
        on_hung: Callable[[Child, str], None],
    ) -> None:
        self._plan = plan
        self._session = session
        self._living = living
        self._on_hung = on_hung
        self._records: dict[Child, Record] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(self._plan.limits.health_interval)

    async def poll(self) -> None:
        """Ask every process once, all at the same time."""
        children = [child for child in self._living() if not child.expected]
        self._records = {child: self._records.get(child) or Record(time.monotonic()) for child in children}
        problems = await asyncio.gather(*(self._ask(child) for child in children))
        now = time.monotonic()
        for child, problem in zip(children, problems, strict=True):
            record = self._records[child]
            record.note(problem, now)
            verdict = record.verdict(child.role, self._plan.limits, now)
            if verdict is not None and child.exit_code is None and not child.expected:
                self._on_hung(child, verdict)

    async def _ask(self, child: Child) -> str | None:
        url = self._plan.health_url(child.role, child.index)
        if url is None:
            return None
        timeout = aiohttp.ClientTimeout(total=self._plan.limits.health_timeout)
        try:
            async with self._session.get(url, timeout=timeout) as response:
                if response.status == 200:
                    return None
                return f"{response.status}: {(await response.text())[:300].strip()}"
        except TimeoutError:
            return f"{url}: no answer within {self._plan.limits.health_timeout:.0f} s"
        except aiohttp.ClientError as error:
            return f"{url}: {error}"
