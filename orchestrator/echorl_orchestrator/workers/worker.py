"""The orchestrator's side of one worker process."""

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec
import structlog

from echorl_core.config import EnvironmentConfig, HookConfig, SandboxesConfig
from echorl_orchestrator.environments.contract import Slot
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind
from echorl_orchestrator.metrics.process_counters import (
    SANDBOX_START,
    SANDBOXES_DESTROYED,
    SANDBOXES_FAILED,
    SANDBOXES_STARTED,
)
from echorl_orchestrator.sandboxes.contract import SandboxLoss
from echorl_orchestrator.sandboxes.ledger import SandboxLedger
from echorl_orchestrator.sandboxes.lent import BrokerKey, Lending
from echorl_orchestrator.workers.background import Background
from echorl_orchestrator.workers.interpreters import interpreter
from echorl_orchestrator.workers.rpc import FrameError, encode, read, write

_log = structlog.get_logger()


class WorkerStartError(Exception):
    """A worker died or took too long before it was ready."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is started with."""

    environment: EnvironmentConfig
    python_path: Sequence[str] = ()
    attempt: int = 0
    evaluation: bool = False
    """It plays evals."""
    advantage: HookConfig | None = None
    """The run's own advantage function."""
    filters: Sequence[HookConfig | None] = ()
    """The run's own filters, in the order of its rules; None where a rule is none of those."""
    sandboxes: SandboxesConfig | None = None
    """None: the environment may ask for none."""
    gateway: tuple[str, int] | None = None
    """Where sandboxes reach the gateway."""
    broker: BrokerKey | None = None
    """What sandboxes in pods are asked for with."""
    ledger: SandboxLedger = field(default_factory=SandboxLedger)
    """Is told what became of sandboxes."""
    start_deadline_s: float = 120.0
    ping_interval_s: float = 5.0
    ping_deadline_s: float = 60.0


@dataclass(frozen=True)
class EnvironmentFacts:
    """What a worker says of its environment."""

    num_tasks: int
    runner: bool
    scores_groups: bool
    sandboxes: bool = False
    """Its runner takes sandboxes."""
    given: bool = False
    members: list[str] = field(default_factory=list)
    """Empty: not multi-agent."""
    schedule: list[Slot] = field(default_factory=list)
    first_seat: dict[str, Any] = field(default_factory=dict)
    """What the first task says under ``learnerSeat``; empty where it says nothing."""


class _Error(msgspec.Struct):
    message: str
    trace: str = ""
    kind: Literal["env", "infrastructure", "harness", "agent"] = "env"


class _Sandbox(msgspec.Struct):
    """What became of one."""

    what: Literal["waits", "started", "destroyed", "failed"]
    key: Annotated[str, msgspec.Meta(max_length=128)]
    seconds: float = 0.0
    loss: SandboxLoss | None = None
    why: Annotated[str, msgspec.Meta(max_length=128)] = ""
    reason: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class _Answer(msgspec.Struct):
    """To one call."""

    id: int
    value: Any = None
    error: _Error | None = None


def _dumped(hook: HookConfig | None) -> dict[str, Any] | None:
    return None if hook is None else hook.model_dump(mode="json")


def _handle_of(pid: int) -> int | None:
    """A descriptor of a child; None when it is dead and reaped already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


class Worker:
    """One process; made by ``start``."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        spec: WorkerSpec,
    ) -> None:
        self.spec = spec
        self.facts = EnvironmentFacts(0, runner=False, scores_groups=False)
        self.leases = 0
        """Episodes that it runs."""
        self.idle = asyncio.Event()
        """Set while it runs none."""
        self.retired = False
        """Gets no new episodes."""
        self.gone = asyncio.Event()
        """Set once it is retired or dead."""
        self.dead = False
        # Its own name towards the broker: what it leaves in pods is found by that.
        self._broker = None if spec.broker is None else replace(spec.broker, owner=secrets.token_hex(4))
        self._started = time.monotonic()
        self._process = process
        self._handle = _handle_of(process.pid)
        self._reader = reader
        self._writer = writer
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._ponged = asyncio.Event()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def lived_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started

    @classmethod
    async def start(cls, spec: WorkerSpec, background: Background) -> "Worker":
        """Start a process and wait until it has loaded the environment.

        Raises:
            BadInputError: the environment cannot be loaded.
            WorkerStartError: the process died or missed its deadline.
        """
        own, other = socket.socketpair()
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(interpreter(spec.environment.type), "-P", "-m", "echorl_orchestrator.workers.process"),
                *("--fd", str(other.fileno())),
                *("--parent", str(os.getpid()), "--attempt", str(spec.attempt)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )
            reader, writer = await asyncio.open_connection(sock=own)
        except BaseException:
            own.close()
            if process is not None:
                # It ends with its socket.
                await process.wait()
            raise
        finally:
            other.close()
        worker = cls(process, reader, writer, spec)
        try:
            async with asyncio.timeout(spec.start_deadline_s):
                await worker._greet()
        except BaseException:
            await worker.kill()
            raise
        background.spawn(worker._listen(), f"worker-{worker.pid}-listen")
        background.spawn(worker._ping(), f"worker-{worker.pid}-ping")
        return worker

    async def _greet(self) -> None:
        environment = self.spec.environment
        start = {
            "environment": environment.model_dump(mode="json"),
            "python_path": list(self.spec.python_path),
            "evaluation": self.spec.evaluation,
            "advantage": _dumped(self.spec.advantage),
            "filters": [_dumped(hook) for hook in self.spec.filters],
            "sandboxes": None if self.spec.sandboxes is None else self.spec.sandboxes.model_dump(mode="json"),
            "gateway": self.spec.gateway,
            "broker": None if self._broker is None else astuple(self._broker),
        }
        try:
            write(self._writer, encode({"start": start}))
            answer = await read(self._reader)
        except FrameError as error:
            raise WorkerStartError(f"environments.{environment.name}: {error}") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            raise WorkerStartError(
                f"environments.{environment.name}: a worker ended with {code} at its start"
            ) from None
        if "refused" in answer:
            raise BadInputError(answer["refused"])
        self.facts = msgspec.convert(answer["ready"], EnvironmentFacts)

    async def call(self, op: str, *, episode: str | None = None, **args: Any) -> Any:
        """Run one call in the worker. Cancelling it asks the worker to cancel what it awaits.

        Raises:
            EpisodeError: ENV when environment code raised, or the class that it gave its failure; SANDBOX when the
                process is dead.
        """
        if self.dead:
            raise EpisodeError(ErrorKind.SANDBOX, f"worker {self.pid} is dead")
        self._number += 1
        number = self._number
        future = asyncio.get_running_loop().create_future()
        try:
            frame = encode({"id": number, "op": op, "episode": episode, "args": args})
        except FrameError as error:
            raise EpisodeError(ErrorKind.ENV, f"{op}: {error}") from None
        self._calls[number] = future
        try:
            write(self._writer, frame)
            return await future
        except ConnectionError:
            # It is dead, but not buried yet.
            raise EpisodeError(ErrorKind.SANDBOX, f"worker {self.pid} died") from None
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError):
                write(self._writer, encode({"id": number, "episode": episode, "cancel": True}))
            raise
        finally:
            self._calls.pop(number, None)

    async def _listen(self) -> None:
        try:
            while True:
                self._take_in(await read(self._reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except FrameError as error:
            # Environment code has written to our socket; where the next frame begins nobody knows.
            _log.warning("worker_garbled", environment=self.spec.environment.name, pid=self.pid, error=str(error))
        finally:
            self._bury()

    def _take_in(self, message: dict[str, Any]) -> None:
        """A pong, what became of a sandbox, or the answer to a call.

        Raises:
            FrameError: neither.
        """
        if "pong" in message:
            self._ponged.set()
            return
        try:
            if "sandbox" in message:
                self._count(msgspec.convert(message["sandbox"], _Sandbox))
                return
            answer = msgspec.convert(message, _Answer)
        except msgspec.ValidationError as error:
            raise FrameError(f"no answer: {error}") from None
        future = self._calls.get(answer.id)
        if future is None or future.done():
            return
        if answer.error is None:
            future.set_result(answer.value)
        else:
            raised = EpisodeError(ErrorKind(answer.error.kind), answer.error.message)
            raised.add_note(answer.error.trace)
            future.set_exception(raised)

    def _count(self, sandbox: "_Sandbox") -> None:
        name, ledger = self.spec.environment.name, self.spec.ledger
        if sandbox.what == "waits":
            ledger.waits(sandbox.key, sandbox.why, sandbox.reason)
            return
        ledger.settled(sandbox.key, sandbox.loss)
        if sandbox.what == "started":
            SANDBOXES_STARTED.labels(name).inc()
            SANDBOX_START.labels(name).observe(sandbox.seconds)
        elif sandbox.what == "destroyed":
            SANDBOXES_DESTROYED.labels(name).inc()
        else:
            SANDBOXES_FAILED.labels(name, str(sandbox.loss)).inc()

    def _bury(self) -> None:
        self.dead = True
        self.gone.set()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(EpisodeError(ErrorKind.SANDBOX, f"worker {self.pid} died"))

    async def _ping(self) -> None:
        """Kill the process when not even its event loop gets to run any more (code that holds the interpreter)."""
        while not self.dead:
            self._ponged.clear()
            try:
                write(self._writer, encode({"ping": 1}))
                async with asyncio.timeout(self.spec.ping_deadline_s):
                    await self._ponged.wait()
            except TimeoutError:
                if not self.dead:
                    _log.warning("worker_stuck", environment=self.spec.environment.name, pid=self.pid)
                    await self.kill()
                return
            except ConnectionError:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.spec.ping_interval_s):
                    await self.gone.wait()
                    return

    def take(self) -> None:
        """Count one more episode."""
        self.leases += 1
        self.idle.clear()

    def give_back(self) -> None:
        """Count one episode less."""
        self.leases -= 1
        if self.leases == 0:
            self.idle.set()

    def retire(self) -> None:
        """Give it no new episodes."""
        self.retired = True
        self.gone.set()

    async def end_sandboxes(self) -> None:
        """End the pods that a killed process left; sandboxes of this machine went with it.

        Raises:
            SandboxError: the broker does not answer.
        """
        if self._broker is not None and self.spec.sandboxes is not None and self.facts.sandboxes:
            await Lending(self.spec.sandboxes, None, lambda _: None, self._broker).end_all()

    async def kill(self) -> None:
        """End the process now. Idempotent."""
        self._writer.close()
        # By file descriptor: Process.kill would reap a child that has just died, behind asyncio's back.
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            os.close(self._handle)
            self._handle = None
        await self._process.wait()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._bury()
