"""Files that a user names for us to read: never without end, whatever they are."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_JSON_BYTES = 64_000_000
"""Of a file that a run writes about itself."""


def read_capped(path: Path, limit_bytes: int) -> bytes:
    """A file's content. A pipe is read to its end, at once if nobody writes to it.

    Raises:
        OSError: it cannot be read, or holds more than ``limit_bytes`` (EFBIG); a device may have no end.
    """
    with _opened(path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"more than {limit_bytes:,} bytes", str(path))
    return data


def lines_capped(path: Path, longest_bytes: int) -> Iterator[bytes]:
    """A file's lines, one by one, with their ends.

    Raises:
        OSError: it cannot be read, or has a line of more than ``longest_bytes`` (EFBIG).
    """
    with _opened(path) as file:
        while line := file.readline(longest_bytes + 1):
            if len(line) > longest_bytes:
                raise OSError(errno.EFBIG, f"a line of more than {longest_bytes:,} bytes", str(path))
            yield line


def _opened(path: Path) -> BinaryIO:
    # Opened to wait for nobody: a FIFO that has no writer would keep us.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "rb")
