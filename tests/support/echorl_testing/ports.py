"""Ports for servers that tests start in other processes."""

import fcntl
import os
import random
import tempfile
from pathlib import Path

from echorl_cli.local.ports import is_free

_RANGE = range(11_000, 18_000)
"""Below those of the product's own runs, and below those that the kernel gives to whoever asks for any."""


def free_ports(count: int) -> list[int]:
    """Consecutive ports of 127.0.0.1 that nobody listens on now.

    Every process on this machine that calls this goes on where the last one stopped, so that none is given out again
    before all others were: a server may be slow to listen, and starts again at its port.

    Raises:
        OSError: there are not that many.
    """
    with (Path(tempfile.gettempdir()) / f"echorl-test-ports-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        begin = int(file.read() or random.choice(_RANGE))
        for port in (*range(begin, _RANGE.stop - count), *range(_RANGE.start, begin)):
            found = range(port, port + count)
            if all(map(is_free, found)):
                file.truncate(0)
                file.write(str(found.stop))
                return list(found)
    raise OSError(f"{count} consecutive free ports in {_RANGE.start}-{_RANGE.stop - 1}: found none")


def free_port() -> int:
    """One of ``free_ports``."""
    return free_ports(1)[0]
