"""Makes the orchestrator's parts and hands them to each other; nothing runs yet."""

import asyncio
import errno
import socket

from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.monitors.monitors import Monitors
from echorl_orchestrator.records.episode_records import EpisodeRecords
from echorl_orchestrator.records.recorder import Recorder


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything expensive is started; callers wait until somebody accepts.

    Raises:
        BadInputError: the port is taken, or the address is none of this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
        found.listen(256)
    except OSError as error:
        found.close()
        reason = "is taken by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
        raise BadInputError(f"orchestrator: port {port} on {host} {reason}; accepted is a free one") from error
    return found


async def end(
    *parts: EnginePool | EpisodePlayer | EpisodeRecords | Monitors | Recorder, deadline_s: float = 10.0
) -> None:
    """Close parts one after the other; one that hangs does not keep the role alive."""
    for part in parts:
        try:
            async with asyncio.timeout(deadline_s):
                await part.close()
        except TimeoutError:
            continue
