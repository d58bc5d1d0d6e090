"""Standard output and error of a command that works for hours: their readers may leave before it has ended."""

import io
import os
import sys
from typing import TextIO


class _Lossy(io.FileIO):
    """Drops what nobody takes: a closed pipe, a terminal that is gone, a full disk."""

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            written = super().write(data)  # type: ignore[arg-type]
        except OSError:
            return size
        return size if written is None else written


def outlive_readers() -> None:
    """Let prints to standard output and error never fail from here on. Streams that are no files stay as they are."""
    sys.stdout, sys.stderr = _lossy(sys.stdout), _lossy(sys.stderr)


def _lossy(stream: TextIO | None) -> TextIO:
    if stream is None:  # it was closed before we began
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - as long as the process lives
    try:
        stream.flush()
        raw = _Lossy(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):
        return stream
    encoding = getattr(stream, "encoding", "utf-8")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=True)
