"""The program that a sandbox is: ``python -S -P -m echorl_orchestrator.sandboxes.process.holder FD``.

It becomes two processes. The guard stays outside and ends the sandbox with the worker, and after its time. The keeper
is process 1 of the sandbox's process namespace, which nobody inside sees: it mounts the tree, and starts every command
as a bubblewrap of its own, so that a command's end is the kernel's end of all that it started. Both end together.

Everything is imported before the change of user: whoever runs here may not be able to read Python's own files.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import sys

from echorl_orchestrator.sandboxes.process import kernel
from echorl_orchestrator.sandboxes.process.holder_exit import EXPIRED
from echorl_orchestrator.sandboxes.process.keeper import Keeper
from echorl_orchestrator.sandboxes.process.order import Order, receive, send
from echorl_orchestrator.sandboxes.process.tree import Mounted

_NAMESPACES = kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_UTS


def _guard(keeper: int, worker: int, ttl_s: float) -> int:
    kept = os.pidfd_open(keeper)
    ended, _, _ = select.select([kept, worker], [], [], ttl_s)
    if kept not in ended:
        os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    return 0 if ended else EXPIRED


def _keep(channel: socket.socket, order: Order) -> None:
    kernel.die_with_parent(signal.SIGKILL)
    mounted = Mounted.of(order)
    listener = socket.socket()
    beside = []
    if order.gateway:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        beside.append(listener.fileno())
    keeper = Keeper(channel, order, mounted)
    send(channel, {"ready": True}, beside)
    listener.close()
    keeper.serve()


def main() -> None:
    """Make the sandbox that the first message orders, and keep it."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    told = receive(channel)
    if told is None:
        return
    order = Order(**told[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = os.pidfd_open(order.worker)
        if os.getppid() != order.worker:
            return
        kernel.become(order.user)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        kernel.unshare_as_root(_NAMESPACES)
        keeper = os.fork()
        if keeper:
            channel.close()
            os._exit(_guard(keeper, worker, order.ttl_s))
        os.close(worker)
        _keep(channel, order)
    except OSError as error:
        with contextlib.suppress(OSError):
            send(channel, {"error": str(error)})
    os._exit(0)


if __name__ == "__main__":
    main()
