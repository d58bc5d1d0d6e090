"""What a sandbox is, whoever provides it: a clean file tree of an image, whose commands run apart from all else.

Every call is idempotent by its key, so that one whose answer was lost may be made again. Nothing inside reaches a
network; a sandbox that asks for it reaches the gateway, at ``Sandbox.gateway``, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable


class SandboxLoss(StrEnum):
    """Why a sandbox is not there, or not any more. Each is a failure of infrastructure but for the last."""

    REFUSED = "refused"
    """The provider could not make it: no room within the quota, no permission, no such runtime."""
    IMAGE = "image"
    """Its image is not there, or cannot be read."""
    START = "start"
    """It was made, and was not ready within its deadline."""
    EVICTED = "evicted"
    """The cluster took it away: eviction, preemption, a drained or lost node."""
    LOST = "lost"
    """It stopped answering, and nobody knows why."""
    EXPIRED = "expired"
    """It outlived its ``ttl_s``."""
    OVERUSED = "overused"
    """What ran inside used up memory or disk that was its own, and took the sandbox with it: the agent's doing."""


class SandboxError(Exception):
    """A sandbox cannot be made or used; ``loss`` says by whose doing."""

    def __init__(self, loss: SandboxLoss, message: str) -> None:
        super().__init__(f"{loss}: {message}")
        self.loss = loss
        self.message = message


@dataclass(frozen=True)
class SandboxLimits:
    """What one sandbox may use."""

    cpu: float = 1.0
    memory_bytes: int = 2 << 30
    disk_bytes: int = 2 << 30
    """Of everything that is written, wherever."""
    processes: int = 512


UNSAID_LIMITS = SandboxLimits()
"""Where neither a run nor its environment says any."""


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made of."""

    image: str
    """A folder or tar archive (process provider), or an image's reference (pods)."""
    workdir: str
    """Absolute; commands run here unless they say otherwise. It is made where the image lacks it."""
    limits: SandboxLimits | None = None
    """None: all that the run gives one."""
    ttl_s: float = 3600.0
    """Seconds until it ends by itself, whoever forgot it."""
    gateway: bool = False
    """Whether the gateway can be reached from inside; a grader's never can."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Read-only folders, by their absolute path inside: an agent's installation, for example. Values as ``image``."""


@dataclass(frozen=True)
class Command:
    """What is run inside."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """The whole of it, beside ``PATH``, ``HOME``, ``LANG`` and ``TMPDIR``, which the sandbox gives."""
    workdir: str | None = None
    """None: the sandbox's."""
    stdin: bytes = b""
    root: bool = False
    """As the sandbox's root user, not as the unprivileged one that agents run as: for preparing and grading."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """As a shell would say it: 128 + n after signal n."""
    killed: bool = False
    """By ``Sandbox.kill``."""
    out_of_memory: bool = False
    """The kernel ended a process of its tree for the sandbox's memory limit."""
    out_of_processes: bool = False
    """It was ended since the sandbox had more processes than it may; not where the kernel makes no more than that."""


@runtime_checkable
class Sandbox(Protocol):
    """One sandbox. Every method raises ``SandboxError`` when the sandbox is not there any more."""

    key: str
    gateway: str | None
    """The gateway's base address as it is reached from inside, without a path; None where it is not."""

    async def start(self, command: Command, key: str) -> None:
        """Start ``command`` detached; a second call with this key does nothing.

        What it started ends with it: whoever needs a server besides starts that as a command of its own.
        Output of both streams goes to one file, of which ``output`` reads; more than the provider's cap is dropped.
        """
        ...

    async def wait(self, key: str, timeout_s: float) -> Ended | None:
        """How the command ended, as soon as it has; None after ``timeout_s`` seconds.

        Raises:
            KeyError: no command was started with this key.
        """
        ...

    async def output(self, key: str, offset: int = 0, limit: int = 1 << 20) -> bytes:
        """Up to ``limit`` bytes that the command has written, from byte ``offset``."""
        ...

    async def kill(self, key: str) -> None:
        """End the command and everything that it started, also what left its process group; returns when it is gone."""
        ...

    async def read(self, path: str, limit: int = 64 << 20) -> bytes:
        """The bytes of a plain file inside.

        Raises:
            OSError: it is no plain file within the sandbox, or longer than ``limit`` bytes.
        """
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        """Write a file as a whole or not at all, with its folders; what arrived is checked against its sha256.

        Raises:
            OSError: there is no room, or ``path`` is a folder.
        """
        ...


@runtime_checkable
class Sandboxes(Protocol):
    """A provider, for one episode's runner. It destroys what the episode forgets."""

    async def create(self, spec: SandboxSpec, key: str) -> Sandbox:
        """A clean sandbox that is ready; a second call with this key gives the same one.

        Raises:
            SandboxError: there is none.
        """
        ...

    async def destroy(self, key: str) -> None:
        """End everything inside and remove what it wrote; nothing happens where there is none."""
        ...

    async def list(self) -> list[str]:
        """Keys of those that are there."""
        ...
