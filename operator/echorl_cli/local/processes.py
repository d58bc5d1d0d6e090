"""Starts the roles' processes, sees them end, and ends them with all that they started."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from echorl_cli.local import proctable, tethered
from echorl_cli.local.notes import Notes, forget, write_notes
from echorl_cli.local.proctable import Stat
from echorl_core import segments
from echorl_core.names import Role

log = structlog.get_logger()

_KEEPER_GRACE_S = 5.0
_KEEPER_MODULE = "echorl_cli.local.keeper"


@dataclass(eq=False)
class Child:
    """One process of a role."""

    role: Role
    index: int
    attempt: int
    mark: str
    log: Path
    process: asyncio.subprocess.Process
    started: int
    """Clock ticks since boot."""
    shared_memory: dict[str, int] = field(default_factory=dict)
    """Inodes, by name, of segments that it or its children were seen to have mapped."""
    members: dict[int, int] = field(default_factory=dict)
    """Start times of its processes when last seen, by pid."""
    expected: bool = False
    """Whether the supervisor is ending it."""
    why_killed: str | None = None
    """Why it was ended as unhealthy."""
    exit_code: int | None = None
    """None while it lives."""

    @property
    def name(self) -> str:
        """The process's name: its role and its index in it."""
        return f"{self.role}-{self.index}"

    @property
    def pid(self) -> int:
        """The process id, which is its session's and its process group's, too."""
        return self.process.pid


def _look_at(mark: str, starts: Mapping[int, int]) -> tuple[list[Stat], dict[str, int]]:
    stats = proctable.ours(mark, starts)
    return stats, segments.mapped_segments(stat.pid for stat in stats)


class Children:
    """All processes of one supervisor. Each leads a session; none outlives the supervisor.

    Three things see to that: the kernel signals a process when the supervisor dies, the keeper ends the sessions,
    and the next supervisor in the directory ends what ``.processes.json`` names.
    """

    def __init__(
        self, root: Path, mark: str, *, on_exit: Callable[[Child], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """Both are called in the event loop.

        ``on_exit``: a child and all its descendants are gone; ``on_error``: watching one failed.
        """
        self._root = root
        self._mark = mark
        self._on_exit = on_exit
        self._on_error = on_error
        self._launches = 0
        self._living: list[Child] = []
        self._watches: dict[Child, asyncio.Task[None]] = {}
        self._keeper: asyncio.subprocess.Process | None = None
        self._starts: set[asyncio.Task[Child]] = set()

    @property
    def living(self) -> list[Child]:
        """Children that have not been seen to end."""
        return list(self._living)

    async def open(self) -> None:
        """Start the keeper; before it runs, nothing else is started."""
        self._keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _KEEPER_MODULE,
            f"{self._mark}.",
            str(_KEEPER_GRACE_S),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        for child in self._living:
            self._tell(f"add {child.pid} {child.started}")
        self._note()

    async def mind_keeper(self) -> None:
        """Start the keeper again whenever it dies."""
        while self._keeper is not None:
            code = await self._keeper.wait()
            log.warning("the keeper ended; starting it again", exit_code=code)
            await self.open()

    async def close(self) -> None:
        """Let the keeper go; it ends whatever is left. Every child must have been ended before."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None and keeper.stdin is not None:
            keeper.stdin.close()
            await keeper.wait()
        forget(self._root)

    async def start(
        self,
        role: Role,
        index: int,
        *,
        attempt: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        files: Sequence[int] = (),
    ) -> Child:
        """Start one process; its output is appended to ``log``. ``files``: descriptors that it inherits.

        Raises:
            OSError: the log cannot be written.
        """
        # A start that is under way when its task is cancelled goes on: no process is ever out of sight.
        start = asyncio.ensure_future(
            self._start(role, index, attempt=attempt, command=command, environment=environment, log=log, files=files)
        )
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        return await asyncio.shield(start)

    async def _start(
        self,
        role: Role,
        index: int,
        *,
        attempt: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        files: Sequence[int],
    ) -> Child:
        self._launches += 1
        mark = f"{self._mark}.{role}-{index}.{self._launches}."
        # vLLM's API server ends its own children when it is asked to; the other roles have nothing to put in order.
        number = signal.SIGTERM if role is Role.INFERENCE else signal.SIGKILL
        tether = [sys.executable, "-I", "-S", tethered.__file__, str(int(number)), str(os.getpid())]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *tether,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**environment, proctable.MARK: mark},
                pass_fds=files,
                start_new_session=True,
            )
        stat = proctable.stat_of(process.pid)
        child = Child(role, index, attempt, mark, log, process, stat.started if stat is not None else 0)
        self._tell(f"add {child.pid} {child.started}")
        self._living.append(child)
        self._note()
        watch = asyncio.create_task(self._watch(child), name=f"watch {child.name}")
        watch.add_done_callback(self._watched)
        self._watches[child] = watch
        return child

    async def settle(self) -> None:
        """Return when no start is under way."""
        await asyncio.gather(*self._starts, return_exceptions=True)

    async def end(self, child: Child, *, grace_s: float) -> None:
        """End a child with all that it started: SIGTERM, after ``grace_s`` SIGKILL. Returns when all are gone."""
        child.expected = True
        await self._end_tree(child, grace_s)
        await asyncio.shield(self._watches[child])

    async def wait(self, child: Child) -> None:
        """Return when a child and all its descendants are gone."""
        await asyncio.shield(self._watches[child])

    async def observe(self) -> None:
        """Note each child's processes and shared memory, for the case that they must be found without it."""
        for child in self.living:
            stats, mapped = await asyncio.to_thread(_look_at, child.mark, {child.pid: child.started})
            child.members = {stat.pid: stat.started for stat in stats}
            child.shared_memory |= mapped
        self._note()

    async def _end_tree(self, child: Child, grace_s: float) -> None:
        starts = {child.pid: child.started, **child.members}
        ended = await asyncio.to_thread(proctable.end_all, child.mark, starts, grace_s=grace_s)
        if stray := [f"{stat.pid} ({stat.command})" for stat in ended if stat.pid != child.pid]:
            log.debug("ended descendants", of=child.name, processes=stray)

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        await self._end_tree(child, 0.0)
        for path in await asyncio.to_thread(segments.remove_unused, child.shared_memory):
            log.info("removed shared memory", of=child.name, segment=str(path))
        child.exit_code = code
        self._living.remove(child)
        self._tell(f"drop {child.pid}")
        self._note()
        self._on_exit(child)

    def _watched(self, watch: asyncio.Task[None]) -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None:
            self._on_error(error)

    def _tell(self, line: str) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):  # a new keeper is told everything
                self._keeper.stdin.write(f"{line}\n".encode())

    def _note(self) -> None:
        processes = {child.pid: child.started for child in self._living}
        for child in self._living:
            processes |= child.members
        mapped = {name: inode for child in self._living for name, inode in child.shared_memory.items()}
        try:
            write_notes(self._root, Notes(self._mark, processes, mapped))
        except OSError as error:
            # As on a full disk. They are written again soon, and needed only if the keeper dies with us.
            log.warning("cannot note the processes", error=str(error))
