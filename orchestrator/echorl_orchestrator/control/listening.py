"""The role's socket: bound before anything expensive is started."""

import asyncio
import errno
import socket
import time

import structlog

from echorl_core.names import ExitCode
from echorl_orchestrator.failures import BadInputError, RunFailure

log = structlog.get_logger()

PATIENCE_S = 60.0
"""How long a restarted role waits for its port: somebody else's connection may hold it for a moment."""
AGAIN_S = 0.5


async def listening(host: str, port: int, *, restarted: bool, patience_s: float = PATIENCE_S) -> socket.socket:
    """A listening socket; callers wait until somebody accepts.

    Args:
        host: the address.
        port: the port.
        restarted: the run has worked with them before, so that they are no mistake of the user's.
        patience_s: how long a restarted role tries.

    Raises:
        BadInputError: at the run's first start the port is taken, or the address is none of this machine's.
        RunFailure: CRASH, the same after a restart, for as long as it has tried.
    """
    end = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is taken by another process" if taken else f"cannot be used: {error}"
            problem = f"orchestrator: port {port} on {host} {reason}"
            if not restarted:
                raise BadInputError(f"{problem}; accepted is a free one") from error
            if time.monotonic() >= end:
                raise RunFailure(ExitCode.CRASH, f"{problem}, for {patience_s:g} s after a restart") from error
        if not told:
            log.warning("the port is not free yet; waiting for it", port=port, host=host, reason=reason)
            told = True
        await asyncio.sleep(AGAIN_S)


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(256)
    except OSError:
        made.close()
        raise
    return made
