"""What a supervisor is given, and how it starts each role: command line, environment, where health is asked."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from echorl_core import names
from echorl_core.attempts import OnExisting, Policy
from echorl_core.config import RoleConfig, RoleConfigs
from echorl_core.identity import RunIdentity
from echorl_core.names import Role
from echorl_core.restarts import RestartPolicy, Rule
from echorl_core.rundir import RunDirectory

ENV_DIE_WITH_PARENT = "ECHORL_DIE_WITH_PARENT"
_FEW_CORES = 4


class Commands(Protocol):
    """Give the argument lists of the roles' processes; ``config`` is the role's config file."""

    def inference(self, config: Path, work: Path) -> Sequence[str]:
        """Arguments of one engine; ``work`` is a folder of its own."""
        ...

    def orchestrator(self, config: Path) -> Sequence[str]:
        """Arguments of the orchestrator."""
        ...

    def trainer(self, config: Path) -> Sequence[str]:
        """Arguments of every trainer rank."""
        ...


@dataclass(frozen=True)
class ModuleCommands:
    """The roles as modules of their Python environments."""

    python: str
    """Python of orchestrator and trainer."""
    inference_python: str

    def inference(self, config: Path, work: Path) -> Sequence[str]:
        """See ``Commands``."""
        return [*self._module(self.inference_python, "echorl_vllm", config), "--work", str(work)]

    def orchestrator(self, config: Path) -> Sequence[str]:
        """See ``Commands``."""
        return self._module(self.python, "echorl_orchestrator", config)

    def trainer(self, config: Path) -> Sequence[str]:
        """See ``Commands``."""
        return self._module(self.python, "echorl_trainer", config)

    def _module(self, python: str, module: str, config: Path) -> list[str]:
        # -P: the folder that the run is started in may hold modules of any name.
        return [python, "-P", "-m", module, "--config", str(config)]


@dataclass(frozen=True)
class Devices:
    """GPUs of the roles, as CUDA_VISIBLE_DEVICES lists; empty: none, the role computes on the CPU."""

    engines: tuple[str, ...]
    """One entry for each engine."""
    trainer: str
    """All ranks see these; a rank takes the one with its local rank."""


@dataclass(frozen=True)
class Limits:
    """How long the supervisor waits for what, in seconds."""

    unhealthy: float = 1800.0
    """Orchestrator and trainer: without a good answer (``stallPolicy.noStepFor``)."""
    engine_unhealthy: float = 60.0
    start: float = 1800.0
    """Until a process answers for the first time."""
    no_step: float = 1800.0
    """A running gang: without a step (``stallPolicy.noStepFor``)."""
    settle: float = 1.0
    """After a death, for others of the same cause."""
    part: float = 120.0
    """Longest time between the ends of orchestrator and trainer, in either order."""
    engine_grace: float = 10.0
    """Time between SIGTERM and SIGKILL of an engine."""
    grace: float = 3.0
    """Time between SIGTERM and SIGKILL of other roles, when the run is stopped at once."""
    health_interval: float = 2.0
    health_timeout: float = 5.0


@dataclass(frozen=True)
class LocalRun:
    """One run on this machine, resolved."""

    run: RunDirectory
    name: str
    uid: str
    configs: RoleConfigs
    commands: Commands
    devices: Devices
    restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    rules: Sequence[Rule] = ()
    """What exit codes mean; the first that matches decides."""
    limits: Limits = field(default_factory=Limits)
    resume: Policy = Policy.AUTO
    """Where the first attempt begins; later ones go on from the newest checkpoint."""
    resume_step: int | None = None
    on_existing: OnExisting = OnExisting.REFUSE
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment variables that every role inherits."""

    @property
    def num_ranks(self) -> int:
        """How many trainer processes the run has."""
        return self.configs.orchestrator.batch.num_ranks

    @property
    def orchestrator_url(self) -> str:
        """Base URL for the supervisor's own calls."""
        return f"http://{self.configs.orchestrator.host}:{self.configs.orchestrator.port}"

    @property
    def ports(self) -> frozenset[int]:
        """Where the processes of the run listen, whether they do so yet or not."""
        first = self.configs.trainer.metrics_port
        engines = (engine.port for engine in self.configs.inference)
        return frozenset({self.configs.orchestrator.port, *engines, *range(first, first + self.num_ranks)})

    def config(self, role: Role, index: int) -> tuple[str, RoleConfig]:
        """File name and content of a process's config."""
        if role is Role.INFERENCE:
            return f"inference-{index}.json", self.configs.inference[index]
        if role is Role.ORCHESTRATOR:
            return "orchestrator.json", self.configs.orchestrator
        return "trainer.json", self.configs.trainer

    def health_url(self, role: Role, index: int) -> str | None:
        """Where a process says whether it makes progress; None: at a port that only it knows."""
        if role is Role.INFERENCE:
            engine = self.configs.inference[index]
            return f"http://{engine.host}:{engine.port}/health"
        if role is Role.ORCHESTRATOR:
            return f"{self.orchestrator_url}/healthz"
        trainer = self.configs.trainer
        return f"http://{trainer.publish_host}:{trainer.metrics_port + index}/healthz" if trainer.metrics_port else None


def process_environment(
    plan: LocalRun, identity: RunIdentity, token: str, role: Role, index: int, *, master_port: int
) -> dict[str, str]:
    """All environment variables of one process.

    Args:
        plan: the run.
        identity: its current attempt.
        token: the secret that guards calls between the roles.
        role: whose process.
        index: engine or rank.
        master_port: rendezvous of the attempt's trainer ranks.
    """
    own = {
        names.ENV_ADMIN_TOKEN: token,
        ENV_DIE_WITH_PARENT: "1",
        "PYTHONUNBUFFERED": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    if (os.cpu_count() or 1) <= _FEW_CORES and "OMP_NUM_THREADS" not in plan.environment:
        own["OMP_NUM_THREADS"] = "1"
    if role is Role.INFERENCE:
        own["CUDA_VISIBLE_DEVICES"] = plan.devices.engines[index]
    elif role is Role.ORCHESTRATOR:
        own["CUDA_VISIBLE_DEVICES"] = ""
    else:
        own |= {
            "CUDA_VISIBLE_DEVICES": plan.devices.trainer,
            "RANK": str(index),
            "LOCAL_RANK": str(index),
            "WORLD_SIZE": str(plan.num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(master_port),
        }
    return {**plan.environment, **identity.environment(), **own}
