"""Files and small messages over ``http://``, or by ``file://``, until a deadline or a cancellation.

A thread that receives shares Python's lock with the engine's loop, and waits for it after every call of the system. So
a call receives a whole block (``MSG_WAITALL``). Beside a loop that holds the lock half the time a download takes two
thirds of what it takes by the standard library's reads, and without one a sixth more, as a block is larger than caches
(``benchmarks/publication/fetch.py``).
"""

import http.client
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol
from urllib.parse import unquote, urlsplit

from echorl_vllm.validation import WeightsRefusedError

_BLOCK = 16 << 20
_SMALL = 4 << 20
_SILENT_S = 10.0
"""For which a publisher may send nothing."""
_ADDRESSES = 8
"""That are asked at the same time at most; of each a file at a time."""
_LOOK_S = 0.5
"""After which a block that is not full yet is left, to look at the limits."""


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


@dataclass
class _Together(Limits):
    """Limits of downloads of which each is of no use without the others."""

    one_failed: Event = field(default_factory=Event)

    def check(self, doing: str) -> float:
        if self.one_failed.is_set():
            raise StageAbortedError(f"another download failed while {doing}")
        return super().check(doing)


class _Source(Protocol):
    def readinto(self, block: memoryview, /) -> int:
        """Fill the block as far as there are bytes, and tell how many; 0: there are no more."""
        ...


class _Answer:
    """The body of an answer, as it comes from the socket."""

    def __init__(self, connection: socket.socket, answer: http.client.HTTPResponse, limits: Limits, url: str) -> None:
        if answer.length is None:
            raise WeightsRefusedError(f"{url}: the answer does not say its length")
        self._socket, self._answer, self._limits, self._url = connection, answer, limits, url
        self._left = answer.length
        self._at_socket = False

    def readinto(self, block: memoryview, /) -> int:
        block = block[: self._left]
        if not block:
            return 0
        count = self._receive(block) if self._at_socket else self._came_with_headers(block)
        self._left -= count
        return count

    def _came_with_headers(self, block: memoryview) -> int:
        # What was read ahead, or else what a first call receives; nothing is kept ahead after it.
        first = self._answer.read1(len(block))
        block[: len(first)] = first
        self._at_socket = True
        self._socket.settimeout(None)
        look = struct.pack("ll", int(_LOOK_S), int(_LOOK_S % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, look)
        return len(first)

    def _receive(self, block: memoryview) -> int:
        silent_until = time.monotonic() + _SILENT_S
        while True:
            self._limits.check(f"downloading {self._url}")
            try:
                return self._socket.recv_into(block, 0, socket.MSG_WAITALL)
            except ConnectionError as error:
                raise ConnectionError(f"{self._url}: broke off: {error}") from error
            except BlockingIOError:
                if time.monotonic() > silent_until:
                    raise TimeoutError(f"{self._url}: timed out, nothing came for {_SILENT_S:g} s") from None


@contextmanager
def _answered(
    url: str, headers: Mapping[str, str], limits: Limits, body: bytes | None = None
) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
    """No proxy is asked, and no redirect followed: it would carry the run's key elsewhere."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise WeightsRefusedError(f"{url}: accepted are http:// and file:// addresses")
    left = limits.check(f"opening {url}")
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=min(_SILENT_S, left))
    with closing(connection):
        try:
            connection.connect()
            used: socket.socket = connection.sock
            target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request("GET" if body is None else "POST", target, body, dict(headers))
            answer = connection.getresponse()
        except TimeoutError as error:
            raise TimeoutError(f"{url}: {error}") from error
        except (http.client.HTTPException, OSError) as error:
            raise ConnectionError(f"{url}: {type(error).__name__}: {error}") from error
        with closing(used), closing(answer):
            if answer.status != http.client.OK:
                reason = answer.read(500).decode(errors="replace").strip()
                raise WeightsRefusedError(f"{url}: HTTP {answer.status} {reason}")
            yield used, answer


@contextmanager
def _opened(url: str, headers: Mapping[str, str], limits: Limits) -> Iterator[_Source]:
    limits.check(f"opening {url}")
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb", buffering=0) as file:
            yield file
        return
    with _answered(url, headers, limits) as (connection, answer):
        yield _Answer(connection, answer, limits, url)


def _unheard(_: int) -> None:
    """Nobody wants to know how far a download is."""


@dataclass(frozen=True)
class Wanted:
    """A file to be brought."""

    folder: str
    """Of its address, with a slash at the end."""
    name: str
    target: Path
    size: int
    first: int = 0
    """Where it begins in ``target``, which it may be one part of."""
    whole: int | None = None
    """Bytes of ``target`` then."""
    arrived: Callable[[int], None] = _unheard
    """See ``download``."""


def download_all(wanted: Sequence[Wanted], headers: Mapping[str, str], limits: Limits) -> int:
    """Bring files from all addresses at the same time, from each one after the other; their bytes.

    The first that fails ends all. Raises as ``download``.
    """
    addresses: dict[str, list[Wanted]] = {}
    for one in wanted:
        addresses.setdefault(one.folder, []).append(one)
    together = _Together(limits.deadline, limits.cancelled)

    def bring(files: list[Wanted]) -> None:
        for one in files:
            url = one.folder + one.name
            download(
                url, one.target, one.size, headers, together, first=one.first, whole=one.whole, arrived=one.arrived
            )

    if len(addresses) == 1:
        bring(list(wanted))
    else:
        with ThreadPoolExecutor(_ADDRESSES, "echorl-download") as pool:
            futures = [pool.submit(bring, files) for files in addresses.values()]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            # What fails from here on fails of this.
            failed = next((error for one in done if (error := one.exception()) is not None), None)
            if failed is not None:
                together.one_failed.set()
                raise failed
    return sum(one.size for one in wanted)


def download(
    url: str,
    target: Path,
    size: int,
    headers: Mapping[str, str],
    limits: Limits,
    *,
    first: int = 0,
    whole: int | None = None,
    arrived: Callable[[int], None] = _unheard,
) -> None:
    """Bring a file of exactly ``size`` bytes, which go to ``target`` from byte ``first`` on; other bytes there stay.

    ``target`` has its ``whole`` size, or ``size`` bytes, from the begin. ``arrived`` is told how many have come
    whenever more have, and ends the download by raising.

    Raises:
        WeightsRefusedError: it has another size, or was refused.
        OSError: nobody answered, nothing came for ten seconds, or the target cannot be written.
        TimeoutError, StageAbortedError: see ``Limits``.
    """
    with _opened(url, headers, limits) as source, open(target, "wb", buffering=0, opener=_kept) as to:
        to.truncate(whole or size)
        to.seek(first)
        block, done = memoryview(bytearray(min(_BLOCK, size + 1))), 0
        while count := source.readinto(block):
            limits.check(f"downloading {target.name}")
            done += count
            if done > size:
                raise WeightsRefusedError(f"{target.name}: longer than the {size} bytes of the weight manifest")
            _write(to.fileno(), block[:count])
            arrived(done)
    if done != size:
        raise WeightsRefusedError(f"{target.name}: {done} bytes, the weight manifest says {size}")


def _kept(path: str, flags: int) -> int:
    """Open a file with what is in it already: memory that is used again, other parts of it."""
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _write(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def received(url: str, headers: Mapping[str, str], limits: Limits, *, at_most: int) -> bytes:
    """A whole file of at most so many bytes. Raises as ``download``."""
    data, block = bytearray(), memoryview(bytearray(min(_SMALL, at_most + 1)))
    with _opened(url, headers, limits) as source:
        while count := source.readinto(block):
            limits.check(f"downloading {url}")
            data += block[:count]
            if len(data) > at_most:
                raise WeightsRefusedError(f"{url}: more than {at_most} bytes, no weight manifest")
    return bytes(data)


def posted(url: str, body: bytes, headers: Mapping[str, str], limits: Limits) -> bytes:
    """The answer to a small message. Raises as ``download``."""
    with _answered(url, headers, limits, body) as (_, answer):
        return answer.read(_SMALL)
