"""Files of a published version over HTTP or from a shared volume, in parts of which several are under way at once."""

import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol
from urllib.parse import unquote, urljoin, urlsplit

from echorl_core.wire.weights import WeightFile
from echorl_vllm.validation import WeightsRefusedError

PART_BYTES = 64 << 20
"""One connection does not fill a fast link, so longer files are fetched in parts of this size."""
_CONNECTIONS = 4
_BLOCK = 4 << 20
_SOCKET_TIMEOUT_S = 10.0


class StageAbortedError(RuntimeError):
    """The stage was given up: aborted, or a newer one took its place."""


@dataclass
class Limits:
    """When a stage must stop: at its deadline, or when it is cancelled."""

    deadline: float
    """When the download must be done, on the clock of ``time.monotonic``."""
    cancelled: Event = field(default_factory=Event)

    def check(self, doing: str) -> float:
        """Seconds that are left.

        Raises:
            TimeoutError: none are.
            StageAbortedError: the stage was cancelled.
        """
        if self.cancelled.is_set():
            raise StageAbortedError(f"aborted while {doing}")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"deadline passed while {doing}")
        return left


class Reader(Protocol):
    """An open file, or an answer's body."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill a buffer, or less of it; how many bytes, 0 at the end."""
        ...


@dataclass(frozen=True)
class Part:
    """Some bytes of a file of a version."""

    file: WeightFile
    first: int
    size: int

    @property
    def after(self) -> int:
        """The byte after the last."""
        return self.first + self.size

    @property
    def range(self) -> str | None:
        """Which bytes these are, as HTTP has it; None: the whole file."""
        return None if self.size == self.file.size else f"bytes={self.first}-{self.after - 1}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the run's token elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Refuse: urllib then raises the 3xx answer as an error."""


@contextmanager
def opened(url: str, headers: Mapping[str, str], limits: Limits, part: Part | None = None) -> Iterator[Reader]:
    """What an address answers, or a part of it.

    Raises:
        WeightsRefusedError: another answer than wanted, or an address of another kind than ``http`` and ``file``.
        OSError: nobody answers.
    """
    left = limits.check(f"opening {url}")
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            file.seek(part.first if part else 0)
            yield file
        return
    wanted = part.range if part else None
    if parts.scheme != "http":
        raise WeightsRefusedError(f"{url}: accepted are http:// and file:// addresses")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    ranged = {} if wanted is None else {"Range": wanted}
    request = urllib.request.Request(url, headers={**headers, **ranged})  # noqa: S310 - the scheme was checked
    try:
        with opener.open(request, timeout=min(_SOCKET_TIMEOUT_S, left)) as response:
            if part is not None and wanted is not None:
                _check_part(url, part, response.status, response.headers.get("Content-Range", ""))
            yield response
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(500).decode(errors="replace").strip()
        raise WeightsRefusedError(f"{url}: HTTP {error.code} {reason}") from None


def _check_part(url: str, part: Part, status: int, told: str) -> None:
    if status != 206:
        raise WeightsRefusedError(f"{url}: HTTP {status}, asked for was {part.range}, which answers 206")
    if told != f"bytes {part.first}-{part.after - 1}/{part.file.size}":
        raise WeightsRefusedError(f"{url}: {told!r}, the weight manifest says {part.file.size} bytes")


def _parts(files: Sequence[WeightFile], part_bytes: int) -> list[Part]:
    return [
        Part(file, first, min(part_bytes, file.size - first))
        for file in files
        for first in range(0, max(file.size, 1), part_bytes)
    ]


def _copy(source: Reader, target: int, part: Part, limits: Limits) -> None:
    """Copy a part's bytes, and find out whether the file goes on after its last."""
    buffer, at, name = memoryview(bytearray(min(_BLOCK, part.size))), part.first, part.file.name
    while at < part.after:
        limits.check(f"downloading {name}")
        count = source.readinto(buffer[: part.after - at])
        if not count:
            raise WeightsRefusedError(f"{name}: {at} bytes, the weight manifest says {part.file.size}")
        written = 0
        while written < count:
            written += os.pwrite(target, buffer[written:count], at + written)
        at += count
    if part.after == part.file.size and source.read(1):
        raise WeightsRefusedError(f"{name}: longer than the {part.file.size} bytes of the weight manifest")


class Download:
    """A version's files on their way into a folder that is empty."""

    def __init__(self, url: str, headers: Mapping[str, str], limits: Limits) -> None:
        """``url``: of the manifest, beside which the files lie."""
        self._url, self._headers, self._limits = url, headers, limits
        self._left: queue.SimpleQueue[Part] = queue.SimpleQueue()
        self._failed: list[Exception] = []

    def run(self, files: Sequence[WeightFile], folder: Path, *, part_bytes: int = PART_BYTES) -> None:
        """Bring all files.

        Raises:
            WeightsRefusedError: sizes differ from those of the manifest, or the publisher refused.
            TimeoutError: the deadline passed.
            StageAbortedError: the stage was cancelled.
            OSError: the publisher cannot be reached, or the folder cannot be written.
        """
        for part in _parts(files, part_bytes):
            self._left.put(part)
        with ExitStack() as stack:
            targets = {file.name: stack.enter_context((folder / file.name).open("wb")).fileno() for file in files}
            # Daemons: a download must never keep a worker alive that wants to end.
            threads = [
                threading.Thread(target=self._work, args=(targets,), name="echorl-download", daemon=True)
                for _ in range(min(_CONNECTIONS, self._left.qsize()))
            ]
            for thread in threads:
                thread.start()
            # They end by themselves: every read has a time-out, and every block looks at the limits.
            for thread in threads:
                thread.join()
        if self._failed:
            raise self._failed[0]

    def _work(self, targets: Mapping[str, int]) -> None:
        try:
            while not self._failed:
                part = self._left.get_nowait()
                with opened(urljoin(self._url, part.file.name), self._headers, self._limits, part) as source:
                    _copy(source, targets[part.file.name], part, self._limits)
        except queue.Empty:
            return
        except Exception as error:
            self._failed.append(error)
