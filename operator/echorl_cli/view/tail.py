"""Whole lines of a file that somebody appends to."""

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

CHUNK_BYTES = 8_000_000
LONGEST_LINE_BYTES = 256_000_000


@dataclass
class Lines:
    """What was appended, up to the last whole line."""

    texts: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """Byte in the file at which each line begins."""
    first_number: int = 1
    """Number of the first of them in the file, from 1."""
    anew: bool = False
    """The file is another one, or was cut: what was read of it before is void."""


class Tail:
    """Reads on where it ended; a last line without its end waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset, self._count = 0, 0, 0

    def read(self) -> Lines:
        """The lines that are new, at most about ``CHUNK_BYTES`` of them; none where there is no file.

        Raises:
            OSError: the file is a link, cannot be read, or has a line that is longer than any record.
        """
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return Lines()
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            anew = self._offset > 0 and (status.st_ino != self._inode or status.st_size < self._offset)
            if anew:
                self._offset = self._count = 0
            self._inode = status.st_ino
            file.seek(self._offset)
            data = _whole(file.read(CHUNK_BYTES))
            if not data and status.st_size - self._offset > CHUNK_BYTES:
                file.seek(self._offset)
                data = file.readline(LONGEST_LINE_BYTES)
                if len(data) == LONGEST_LINE_BYTES:
                    raise OSError(errno.EFBIG, f"a line of more than {LONGEST_LINE_BYTES:,} bytes", str(self.path))
                data = _whole(data)
        lines = Lines(first_number=self._count + 1, anew=anew)
        for line in data.splitlines(keepends=True):
            lines.starts.append(self._offset)
            lines.texts.append(line.decode(errors="replace"))
            self._offset += len(line)
        self._count += len(lines.texts)
        return lines


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]
