"""The processes of one run by role: how an attempt, an engine, the orchestrator, the gang begin and end."""

import asyncio
from pathlib import Path

from echorl_cli.local.launch import LocalRun, process_environment
from echorl_cli.local.ports import free_ports
from echorl_cli.local.processes import Child, Children
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import RankMemory, Restarted, held_by_all
from echorl_core.names import Role

LATEST = "latest"


class Fleet:
    """Which processes run. Decides nothing."""

    def __init__(self, plan: LocalRun, children: Children, token: str) -> None:
        self._plan = plan
        self._children = children
        self._token = token
        self._master_port = 0
        self.identity = RunIdentity(plan.name, plan.uid, 0)
        self.engines: dict[int, Child] = {}
        self.orchestrator: Child | None = None
        self.ranks: dict[int, Child] = {}
        self._memories: dict[int, RankMemory] = {}
        """What outlives the ranks' processes; empty: nothing does."""

    @property
    def is_held(self) -> bool:
        """Whether the ranks can go on in this attempt from a step that memory holds."""
        return held_by_all(self._memories) is not None

    @property
    def gang_is_whole(self) -> bool:
        """Whether no rank of this attempt has ended."""
        return all(child.exit_code is None for child in self.ranks.values())

    @property
    def orchestrator_lives(self) -> bool:
        """Whether there is an orchestrator that nobody is ending."""
        child = self.orchestrator
        return child is not None and child.exit_code is None and not child.expected

    def begin_attempt(self) -> RunIdentity:
        """Take the next attempt number, and write what its processes start from."""
        run = self._plan.run
        if not run.root.is_dir():
            raise FileNotFoundError(f"{run.root}: is gone")
        attempt = run.last_attempt() + 1
        configs = run.attempt(attempt) / "configs"
        configs.mkdir(parents=True)
        for role, count in self._counts().items():
            for index in range(count):
                name, config = self._plan.config(role, index)
                config.dump(configs / name)
        logs = run.logs(attempt)
        logs.mkdir(parents=True, exist_ok=True)
        latest = logs.parent / LATEST
        if latest.is_symlink():
            latest.unlink()
        if not latest.exists():  # a file or folder of that name is none of ours
            latest.symlink_to(logs.name)
        self.identity = RunIdentity(self._plan.name, self._plan.uid, attempt)
        self._new_memories()
        fault_point("supervisor.attempt_begun")
        return self.identity

    async def start_missing_engines(self) -> None:
        """Start every engine that does not run; engines outlive attempts."""
        fault_point("supervisor.prepared")
        for index in range(len(self._plan.configs.inference)):
            if index not in self.engines:
                await self.start_engine(index)

    async def start_engine(self, index: int) -> Child:
        """Start one engine."""
        self.engines[index] = await self._start(Role.INFERENCE, index)
        return self.engines[index]

    async def start_orchestrator(self) -> Child:
        """Start the orchestrator in the current attempt."""
        self.orchestrator = await self._start(Role.ORCHESTRATOR, 0)
        return self.orchestrator

    async def start_ranks(self, restarted: Restarted | None = None) -> None:
        """Start all trainer ranks, which are the gang; again in their attempt, if that is what happened."""
        fault_point("supervisor.half_started")
        [self._master_port] = free_ports(1, taken={self._master_port, *self._plan.ports})
        self.ranks = {}
        for rank in range(self._plan.num_ranks):
            self.ranks[rank] = await self._start(Role.TRAINER, rank, restarted)

    def give_up_ranks(self) -> None:
        """What their ends say is of no interest any more."""
        for child in self.ranks.values():
            child.expected = True

    async def end_ranks(self) -> None:
        """End the ranks that are left."""
        living = [child for child in self.ranks.values() if child.exit_code is None]
        await asyncio.gather(*(self._children.end(child, grace_s=0.0) for child in living))

    def engine_at(self, address: str) -> Child | None:
        """The engine process that listens at ``host:port``."""
        for index, config in enumerate(self._plan.configs.inference):
            if address == f"{config.host}:{config.port}":
                return self.engines.get(index)
        return None

    async def end_gang(self, *, grace_s: float = 0.0) -> None:
        """End orchestrator and ranks; returns when they and their descendants are gone."""
        children = [child for child in self._children.living if child.role is not Role.INFERENCE]
        await asyncio.gather(*(self._children.end(child, grace_s=grace_s) for child in children))
        self.orchestrator, self.ranks = None, {}

    async def end_engines(self) -> None:
        """End all engines."""
        children = [child for child in self._children.living if child.role is Role.INFERENCE]
        grace_s = self._plan.limits.engine_grace
        await asyncio.gather(*(self._children.end(child, grace_s=grace_s) for child in children))

    def _counts(self) -> dict[Role, int]:
        return {Role.INFERENCE: len(self._plan.configs.inference), Role.ORCHESTRATOR: 1, Role.TRAINER: 1}

    def close(self) -> None:
        """Let the memory of the ranks go."""
        for memory in self._memories.values():
            memory.close()
        self._memories = {}

    def _new_memories(self) -> None:
        self.close()
        if self._plan.configs.trainer.memory is not None:
            self._memories = {rank: RankMemory(rank) for rank in range(self._plan.num_ranks)}

    async def _start(self, role: Role, index: int, restarted: Restarted | None = None) -> Child:
        plan, attempt = self._plan, self.identity.attempt
        if not plan.run.root.is_dir():
            raise FileNotFoundError(f"{plan.run.root}: is gone")
        config = (plan.run.attempt(attempt) / "configs" / plan.config(role, index)[0]).absolute()
        if role is Role.INFERENCE:
            command = plan.commands.inference(config, (plan.run.root / f"engine-{index}").absolute())
        elif role is Role.ORCHESTRATOR:
            command = plan.commands.orchestrator(config)
        else:
            command = plan.commands.trainer(config)
        environment = process_environment(plan, self.identity, self._token, role, index, master_port=self._master_port)
        memory = self._memories.get(index) if role is Role.TRAINER else None
        if memory is not None:
            environment |= memory.environment() | ({} if restarted is None else restarted.environment())
        return await self._children.start(
            role,
            index,
            attempt=attempt,
            command=command,
            environment=environment,
            files=() if memory is None else memory.files,
            log=new_log(plan.run.logs(attempt), f"{role}-{index}"),
        )


def new_log(folder: Path, name: str) -> Path:
    """``NAME.log``, or ``NAME.<k>.log`` when the attempt has had such processes before."""
    path, launch = folder / f"{name}.log", 0
    while path.exists():
        launch += 1
        path = folder / f"{name}.{launch}.log"
    return path


def last_lines(path: Path, count: int = 20) -> str:
    """The last ``count`` lines of a log, for a message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"({path}: {error.strerror})"
    return "\n".join(text.splitlines()[-count:])
