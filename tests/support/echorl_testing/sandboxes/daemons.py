"""Sandboxes in which the daemon of pods is process 1 of namespaces of this machine, as an unprivileged user."""

import asyncio
import hashlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxSpec
from echorl_orchestrator.sandboxes.pod.sandbox import PATIENCE_S, PodSandbox

OWN_FILES = "/var/echorl"
_START_S = 60.0
_UNPRIVILEGED = 60_000 + os.getpid() % 5_000
"""Another in each process, since a user's processes are counted together, whatever namespace they are in."""
_INSTALLED = "/.echorl"
_LINKS = ("/bin", "/sbin", "/lib", "/lib64")


@dataclass
class Daemon:
    """One that serves."""

    process: asyncio.subprocess.Process
    address: str
    token: str

    async def kill(self) -> None:
        """End it and everything inside."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@dataclass
class Daemons:
    """Starts them; ``close`` ends all."""

    program: Path
    limit: Sequence[str] = ()
    """Words before the command line: ``prlimit --nproc=100``, for example."""
    binds: Sequence[str] = ()
    """More of bubblewrap's words."""
    processes: int = 4096
    """Of all commands of a sandbox together."""
    user: int = 1000
    """Number that it and all commands have inside; 0 is root of its user namespace alone."""
    folder: Path = field(init=False)
    running: list[Daemon] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Install the daemon as an init container does, where that unprivileged user finds it."""
        self.folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
        self.folder.chmod(0o755)
        subprocess.run([self.program, "install", self.folder / "daemon"], check=True, timeout=60)

    async def start(
        self,
        workdir: str = "/task",
        ttl_s: float = 600.0,
        listen: str = "127.0.0.1:0",
        token: str | None = None,
    ) -> Daemon:
        """One more, of a token of its own unless one is given.

        Raises:
            RuntimeError: it does not serve; with what it says.
        """
        token = token or secrets.token_hex(16)
        digest = hashlib.sha256(token.encode()).hexdigest()
        flags = ["--listen", listen, "--token-sha256", digest, "--workdir", workdir]
        flags += ["--ttl-s", str(ttl_s), "--files", OWN_FILES, "--processes", str(self.processes)]
        line = [*self.limit, *self._inside(), f"{_INSTALLED}/daemon", "serve", *flags]
        process = await asyncio.create_subprocess_exec(*line, stderr=asyncio.subprocess.PIPE, start_new_session=True)
        assert process.stderr is not None
        async with asyncio.timeout(_START_S):
            said = (await process.stderr.readline()).decode()
            if "serves on " not in said:
                raise RuntimeError(f"{await process.wait()}: {said}")
        made = Daemon(process, f"http://{said.rpartition('serves on ')[2].strip()}", token)
        self.running.append(made)
        return made

    def _inside(self) -> list[str]:
        other, user = _UNPRIVILEGED, str(self.user)
        become = ["setpriv", f"--reuid={other}", f"--regid={other}", "--clear-groups"] if os.geteuid() == 0 else []
        links = [(str(path), str(path.readlink())) for path in map(Path, _LINKS) if path.is_symlink()]
        return [
            *(*become, "bwrap", "--unshare-user", "--uid", user, "--gid", user, "--unshare-pid", "--as-pid-1"),
            *("--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session", "--clearenv"),
            *("--setenv", "OF_THE_DAEMON", "1", "--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc"),
            *(word for path, target in links for word in ("--symlink", target, path)),
            *("--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp", *self.binds),
            *("--ro-bind", str(self.folder), _INSTALLED),
        ]

    async def close(self) -> None:
        """End all."""
        for daemon in self.running:
            await daemon.kill()
        shutil.rmtree(self.folder)


class DaemonSandboxes:
    """See ``contract.Sandboxes``; of this machine's ``/usr`` only."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._made: dict[str, tuple[Daemon, PodSandbox]] = {}
        self._making = asyncio.Lock()

    async def create(self, spec: SandboxSpec, key: str) -> PodSandbox:
        """See the contract."""
        async with self._making:
            if key not in self._made:
                daemon = await self._daemons.start(spec.workdir, spec.ttl_s)
                self._made[key] = daemon, client(daemon, key)
            return self._made[key][1]

    async def destroy(self, key: str) -> None:
        """See the contract."""
        if key in self._made:
            daemon, sandbox = self._made.pop(key)
            await daemon.kill()
            await sandbox.close()

    async def list(self) -> list[str]:
        """See the contract."""
        return list(self._made)

    async def close(self) -> None:
        """Destroy all."""
        for key in list(self._made):
            await self.destroy(key)


def client(
    daemon: Daemon, key: str = "one", loss: SandboxError | None = None, within_s: float = PATIENCE_S
) -> PodSandbox:
    """A client of it; ``loss``: what is known of its end."""

    async def known() -> SandboxError | None:
        return loss

    return PodSandbox(key, daemon.address, daemon.token, None, known, patience_s=within_s)
