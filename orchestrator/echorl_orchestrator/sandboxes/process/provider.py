"""The provider ``process``: sandboxes of this machine's kernel."""

import asyncio
import os
import shutil
import socket
import stat
import subprocess
from pathlib import Path

from echorl_orchestrator.sandboxes.contract import UNSAID_LIMITS, SandboxError, SandboxLimits, SandboxLoss, SandboxSpec
from echorl_orchestrator.sandboxes.process.images import HOST, Images, host_tree
from echorl_orchestrator.sandboxes.process.order import Order, send
from echorl_orchestrator.sandboxes.process.programs import OWN_ENVIRONMENT, own_program
from echorl_orchestrator.sandboxes.process.sandbox import ProcessSandbox

NO_BUBBLEWRAP = "sandboxes.provider process: found no bwrap, accepted is bubblewrap 0.8 or newer (package bubblewrap)"
_STAND_IN = 65533
"""The user whom root lets sandboxes run as: the last of those that are set aside, and mapped in most containers."""
_START_S = 30.0


def default_folder() -> Path:
    """Where images are kept, of whoever runs this."""
    return Path("/var/tmp") / f"echorl-sandboxes-{os.geteuid()}"  # noqa: S108 - its owner is checked


class ProcessSandboxes:
    """See ``contract.Sandboxes``. Belongs to one event loop; ``close`` ends what was forgotten."""

    def __init__(
        self, folder: Path, gateway: tuple[str, int] | None = None, limits: SandboxLimits = UNSAID_LIMITS
    ) -> None:
        """Make a provider; it makes nothing yet.

        Args:
            folder: for what sandboxes need on disk.
            gateway: where sandboxes that ask for it reach the gateway.
            limits: of sandboxes that ask for none.

        Raises:
            SandboxError: this machine can have none.
        """
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxError(SandboxLoss.REFUSED, NO_BUBBLEWRAP)
        self._bwrap = bwrap
        self._folder = _own(folder)
        self._gateway, self._limits = gateway, limits
        self._user = _STAND_IN if os.geteuid() == 0 else None
        self._images = Images(self._folder / "images", self._user)
        self._made: dict[str, asyncio.Task[ProcessSandbox]] = {}

    async def create(self, spec: SandboxSpec, key: str) -> ProcessSandbox:
        """See the contract."""
        making = self._made.get(key)
        if making is None:
            making = self._made[key] = asyncio.create_task(self._make(spec, key))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled():
                raise SandboxError(SandboxLoss.LOST, f"sandbox {key} was destroyed while it was made") from None
            raise
        except SandboxError:
            self._made.pop(key, None)
            raise

    async def destroy(self, key: str) -> None:
        """See the contract."""
        making = self._made.get(key)
        if making is None:
            return
        if not making.done():
            making.cancel()
        done = (await asyncio.gather(making, return_exceptions=True))[0]
        if isinstance(done, ProcessSandbox):
            await done.close()
        self._made.pop(key, None)

    async def list(self) -> list[str]:
        """See the contract."""
        return [
            key
            for key, making in self._made.items()
            if making.done() and not making.cancelled() and not making.exception() and not making.result().gone.done()
        ]

    async def close(self) -> None:
        """Destroy what is left."""
        await asyncio.gather(*(self.destroy(key) for key in list(self._made)))

    async def _make(self, spec: SandboxSpec, key: str) -> ProcessSandbox:
        if not spec.workdir.startswith("/"):
            raise SandboxError(SandboxLoss.REFUSED, f"workdir: found {spec.workdir!r}, accepted is an absolute path")
        if spec.gateway and self._gateway is None:
            raise SandboxError(SandboxLoss.REFUSED, "gateway: there is none to be reached from this sandbox")
        order = await asyncio.to_thread(self._order, spec)
        try:
            sandbox = self._hold(order, key)
        except OSError as error:
            raise SandboxError(SandboxLoss.REFUSED, f"this machine starts no further process: {error}") from error
        try:
            async with asyncio.timeout(_START_S):
                await sandbox.ready(self._gateway if spec.gateway else None)
        except TimeoutError as error:
            await sandbox.close()
            raise SandboxError(SandboxLoss.START, f"sandbox {key} was not ready after {_START_S:.0f} s") from error
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _order(self, spec: SandboxSpec) -> Order:
        limits = spec.limits or self._limits
        shown, links = host_tree() if spec.image == HOST else ([], [])
        image = None if spec.image == HOST else self._relative(spec.image)
        volumes = [(self._relative(source), path) for path, source in spec.volumes.items()]
        return Order(
            worker=os.getpid(),
            user=self._user,
            bwrap=self._bwrap,
            workdir=spec.workdir,
            ttl_s=spec.ttl_s,
            memory_bytes=limits.memory_bytes,
            disk_bytes=limits.disk_bytes,
            processes=limits.processes,
            gateway=spec.gateway,
            image=image,
            shown=shown + volumes,
            links=links,
        )

    def _relative(self, image: str) -> str:
        return str(self._images.tree(image).relative_to(self._folder))

    def _hold(self, order: Order, key: str) -> ProcessSandbox:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                guard = subprocess.Popen(
                    own_program("holder", str(theirs.fileno())),
                    cwd=self._folder,
                    env=OWN_ENVIRONMENT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            ours.setblocking(False)  # noqa: FBT003
            send(ours, order.dumped())
            return ProcessSandbox(key, guard, ours, self._folder)
        except BaseException:
            # A guard that has started ends with it.
            ours.close()
            raise


def _own(folder: Path) -> Path:
    """The folder, made if need be, and by nobody else."""
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxError(
            SandboxLoss.REFUSED,
            f"{folder}: found {stat.filemode(found.st_mode)} of user {found.st_uid}, "
            f"accepted is a folder that only user {os.geteuid()} writes to",
        )
    return folder.resolve()
