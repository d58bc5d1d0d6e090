"""An agent's part of an episode: a prepared sandbox, the agent within its budget, and the diff that it leaves."""

import time
from dataclasses import dataclass, replace

from echorl_orchestrator.environments.builtin.parts.swe import repository
from echorl_orchestrator.environments.builtin.parts.swe.agents import (
    HOME,
    INSTALL,
    AgentRow,
    Words,
    scripted_agent,
)
from echorl_orchestrator.environments.builtin.parts.swe.args import SweArgs
from echorl_orchestrator.environments.builtin.parts.swe.box import HARNESS, Box, harness_of
from echorl_orchestrator.environments.builtin.parts.swe.preparing import prepare
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.environments.builtin.parts.swe.times import StageTimes
from echorl_orchestrator.failures import HarnessError
from echorl_orchestrator.sandboxes.contract import Command, SandboxError, Sandboxes, SandboxLoss, SandboxSpec


@dataclass(frozen=True)
class Calls:
    """How the agent reaches the model."""

    base_url: str
    """As the runner was given it."""
    session: str
    model: str


@dataclass(frozen=True)
class Work:
    """What an agent has done."""

    base: str
    """The baseline that the diff is against."""
    diff: bytes
    failure: str | None = None
    """How the agent failed, by its exit code, its budget and its sandbox alone."""
    output: str = ""
    late: bool = False
    seconds: float = 0.0


class Workplace:
    """Lets an agent work on rows."""

    def __init__(self, args: SweArgs, times: StageTimes) -> None:
        self._args, self._times, self._agent = args, times, args.agent_row

    async def work(self, sandboxes: Sandboxes, row: Row, calls: Calls, key: str) -> Work:
        """Let the agent work on ``row``, in a sandbox that is gone afterwards.

        Raises:
            HarnessError: the row cannot be prepared.
            SandboxError: the sandbox was lost, and the agent did not do it.
            InfrastructureError: it does not answer.
        """
        try:
            with harness_of(row.key, "setup"):
                box = await Box.make(sandboxes, self._spec(row), key, row.key, self._times.create_s)
                prepared = await prepare(box, row, agent=True, seconds=self._times.setup_s)
            return await self._worked(box, row, calls, prepared.base)
        finally:
            await sandboxes.destroy(key)

    async def solve(self, sandboxes: Sandboxes, row: Row, key: str) -> bytes:
        """The row's own fix as a diff: as it stands there, or what its solution makes of the work tree.

        Raises:
            HarnessError: it has none, or the row cannot be prepared, or its solution fails.
            SandboxError, InfrastructureError: a sandbox was lost.
        """
        if row.gold is not None:
            return row.gold
        if row.solution is None:
            raise HarnessError(f"{row.key}: gold patch: the row has neither a patch nor a solution")
        spec = replace(self._spec(row), gateway=False, volumes={})
        try:
            box = await Box.make(sandboxes, spec, key, row.key, self._times.create_s)
            base = (await prepare(box, row, agent=True, seconds=self._times.setup_s)).base
            ran = await box.shell('cd "$1" && eval "$2"', row.workdir, row.solution, seconds=self._times.agent_s)
            diff, why = await self._diff(box, row, base)
            if not ran.well or diff is None:
                box.failed("solution", ran.told() if not ran.well else why)
            return diff
        finally:
            await sandboxes.destroy(key)

    def _spec(self, row: Row) -> SandboxSpec:
        times = self._times
        ttl_s = times.create_s + 2 * times.setup_s + times.agent_s + times.diff_s + 600.0
        volumes = {} if self._agent.install is None else {INSTALL: self._agent.install}
        return SandboxSpec(row.image, row.workdir, ttl_s=ttl_s, gateway=True, volumes=volumes)

    async def _worked(self, box: Box, row: Row, calls: Calls, base: str) -> Work:
        command = await self._command(box, row, calls)
        started = time.monotonic()
        try:
            ran = await box.run(command, self._times.agent_s)
            failure = (
                None
                if ran.well
                else "the agent " + (f"had not ended after {self._times.agent_s:g} s" if ran.late else ran.told())
            )
            # Nothing of the agent runs any more: what it left behind was ended with it.
            diff, why = await self._diff(box, row, base)
        except SandboxError as error:
            if error.loss is not SandboxLoss.OVERUSED:
                raise
            return Work(
                base, b"", f"the agent used its sandbox up: {error.message}", seconds=time.monotonic() - started
            )
        if diff is None:
            failure = failure or f"the agent left a work tree of which no diff can be taken: {why}"
        return Work(base, diff or b"", failure, ran.output, late=ran.late, seconds=time.monotonic() - started)

    async def _command(self, box: Box, row: Row, calls: Calls) -> Command:
        agent = self._agent
        if box.sandbox.gateway is None:
            raise HarnessError(f"{row.key}: the sandbox does not reach the gateway, which the agent needs")
        words = Words(
            agent,
            gateway=box.sandbox.gateway,
            base_url=calls.base_url,
            session=calls.session,
            model=calls.model,
            statement=row.statement,
            workdir=row.workdir,
        )
        await box.put(f"{HOME}/.keep", b"", root=False)
        for path, text in agent.files.items():
            await box.put(words.filled(path), words.filled(text).encode(), root=False)
        if _uses_harness(agent):
            await box.put(f"{HARNESS}/scripted_agent.py", scripted_agent())
        environment = {"HOME": HOME, **{name: words.filled(value) for name, value in agent.environment.items()}}
        return Command(
            [words.filled(word) for word in agent.command],
            environment,
            workdir=row.workdir,
            stdin=words.filled(agent.stdin).encode(),
        )

    async def _diff(self, box: Box, row: Row, base: str) -> tuple[bytes | None, str]:
        return await repository.taken_diff(
            box, row.workdir, base, longest=self._args.longest_diff_bytes, seconds=self._times.diff_s
        )


def _uses_harness(agent: AgentRow) -> bool:
    return any("{harness}" in text for text in agent.texts())
