"""A sandbox's file tree and its two user namespaces, as the keeper makes them: it is root there, and nowhere else."""

import contextlib
import os
import resource
import socket
from dataclasses import dataclass

from echorl_orchestrator.sandboxes.process import kernel
from echorl_orchestrator.sandboxes.process.files import Tree
from echorl_orchestrator.sandboxes.process.order import Order

AGENT, AGENT_HOME = 1000, "/home/agent"
_BASE = "/tmp"  # noqa: S108 - the keeper's own, in which nothing is before it
"""Where the keeper mounts: any folder that every machine has, and that every user reaches."""
_BYTES_PER_FILE = 8192
_OWN_PROCESSES = 2
"""Bubblewrap's, of one command."""


@dataclass(frozen=True)
class Mounted:
    """Where things are, and who may enter."""

    root: str
    """Folder that is ``/`` inside."""
    memory_files: str
    """Folder that is ``/dev/shm`` inside; it shares the disk's limit."""
    tree: Tree
    as_root: int
    """Descriptor of the user namespace in which the sandbox's user is 0."""
    as_agent: int
    """And of that in which the same user is 1000, without any rights."""

    @classmethod
    def of(cls, order: Order) -> "Mounted":
        """Mount what ``order`` says."""
        kernel.keep_mounts_private()
        # Bubblewrap looks itself up in /proc by numbers of this process namespace.
        kernel.mount("proc", "/proc", kernel.MOUNT_NO_SUID | kernel.MOUNT_NO_DEVICES | kernel.MOUNT_NO_EXEC)
        limits = f"size={order.disk_bytes},nr_inodes={max(1024, order.disk_bytes // _BYTES_PER_FILE)},mode=755"
        kernel.mount("tmpfs", _BASE, kernel.MOUNT_NO_SUID | kernel.MOUNT_NO_DEVICES, limits)
        for name in ("upper", "work", "root", "shm"):
            os.mkdir(f"{_BASE}/{name}")
        root = f"{_BASE}/root"
        if order.image is not None:
            _check_attributes(f"{_BASE}/upper")
            layers = f"lowerdir={order.image},upperdir={_BASE}/upper,workdir={_BASE}/work,userxattr"
            kernel.mount("overlay", root, kernel.MOUNT_NO_SUID | kernel.MOUNT_NO_DEVICES, layers)
        _furnish(Tree(root), order)
        # A second look: what was mounted since is within the tree as well.
        tree = Tree(root)
        os.chmod(f"{_BASE}/shm", 0o1777)  # noqa: S103 - as everywhere
        kernel.loopback_up()
        with open("/proc/sys/kernel/shmall", "w") as file:
            file.write(str(order.memory_bytes // resource.getpagesize()))
        inside = [_user_namespace(user, order.processes + _OWN_PROCESSES) for user in (0, AGENT)]
        return cls(root, f"{_BASE}/shm", tree, *inside)


def _check_attributes(folder: str) -> None:
    """Without them overlayfs mounts, and fails later, where a folder is removed and made anew."""
    try:
        os.setxattr(folder, "user.echorl", b"")
    except OSError as error:
        raise OSError(error.errno, "tmpfs has no user attributes here; accepted is Linux 6.6 or newer") from error


def _furnish(tree: Tree, order: Order) -> None:
    os.umask(0)
    for path, target in order.links:
        above, _, name = path.rpartition("/")
        with tree.folder(above) as folder:
            os.symlink(target, name, dir_fd=folder)
    for source, path in order.shown:
        _show(tree, source, path)
    for path, mode in (("/tmp", 0o1777), ("/dev", 0o755), ("/proc", 0o755), (AGENT_HOME, 0o755), ("/root", 0o700)):  # noqa: S108
        with tree.folder(path, mode):
            pass
    with tree.folder(order.workdir):
        pass
    _know(tree, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh", f"agent:x:{AGENT}:{AGENT}::{AGENT_HOME}:/bin/sh")
    _know(tree, "/etc/group", "root:x:0:", f"agent:x:{AGENT}:")
    if not tree.text("/etc/hosts"):
        tree.put("/etc/hosts", "127.0.0.1 localhost\n")


def _know(tree: Tree, path: str, root: str, agent: str) -> None:
    """Have the agent's number in a list of users or groups: there are programs that end when they have no name."""
    lines = tree.text(path).splitlines() or [root]
    if not any(line.split(":")[2:3] == [str(AGENT)] for line in lines):
        tree.put(path, "".join(f"{line}\n" for line in (*lines, agent)))


def _show(tree: Tree, source: str, path: str) -> None:
    if os.path.isdir(source):
        with tree.folder(path) as folder:
            kernel.show_read_only(source, folder)
        return
    tree.put(path, "")
    shown = tree.open(path)
    kernel.show_read_only(source, shown)
    os.close(shown)


def _user_namespace(user: int, processes: int) -> int:
    """One in which the keeper's user is ``user``, which holds ``processes`` processes and no further namespaces."""
    ours, theirs = socket.socketpair()
    made = os.fork()
    if made == 0:
        ours.close()
        with contextlib.suppress(OSError):
            # The kernel counts all processes of a namespace against the limit of who made it, whatever they do inside.
            resource.setrlimit(resource.RLIMIT_NPROC, (processes, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
            kernel.unshare(kernel.NEW_USER)
            theirs.send(b"made")
            theirs.recv(1)
            with open("/proc/sys/user/max_user_namespaces", "w") as file:
                file.write("0")
            theirs.send(b"closed")
            theirs.recv(1)
        os._exit(0)
    theirs.close()
    with ours:
        _expect(ours)
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} 0 1"), ("gid_map", f"{user} 0 1")):
            with open(f"/proc/{made}/{name}", "w") as file:
                file.write(text)
        ours.send(b".")
        _expect(ours)
        found = os.open(f"/proc/{made}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    os.waitpid(made, 0)
    return found


def _expect(other: socket.socket) -> None:
    if not other.recv(16):
        raise OSError("no user namespace can be made within the sandbox's: see user.max_user_namespaces")
