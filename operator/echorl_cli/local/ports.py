"""Free TCP ports for the roles of one run."""

import random
import socket
from collections.abc import Iterable

# Below the range that the kernel takes for outgoing connections, so that none of those grabs a port that was chosen
# and is not bound yet.
_RANGE = range(18_000, 32_000)


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, taken: Iterable[int] = ()) -> list[int]:
    """``count`` different ports that are free now and not in ``taken``.

    Raises:
        OSError: there are not that many.
    """
    candidates = random.sample(_RANGE, len(_RANGE))
    excluded = set(taken)
    ports: list[int] = []
    for port in candidates:
        if len(ports) == count:
            return ports
        if port not in excluded and is_free(port):
            ports.append(port)
    raise OSError(f"{count} free ports in {_RANGE.start}-{_RANGE.stop - 1}: found {len(ports)}")


def free_run(count: int) -> int:
    """The first of ``count`` consecutive free ports.

    Raises:
        OSError: there is no such run.
    """
    starts = random.sample(range(_RANGE.start, _RANGE.stop - count), 2000)
    for start in starts:
        if all(is_free(start + offset) for offset in range(count)):
            return start
    raise OSError(f"{count} consecutive free ports in {_RANGE.start}-{_RANGE.stop - 1}: found none")
