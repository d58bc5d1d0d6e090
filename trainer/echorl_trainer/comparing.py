"""Digests of a version's tensors and what it changed, where Python's lock is not the loop's: in a process beside it.

    rank    snapshots in memory files --descriptors--> process, which maps the same memory
    rank    which is new, which it is based on -------> digests, and the delta into a file of the new one -> rank

Hundreds of short calls of numpy each take the lock from a loop that launches kernels, at a step's beginning while the
device has nothing to do. No torch here, so the process answers 0.1 s after its start and takes 32 MB. It ends with its
rank.
"""

import mmap
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec
from xxhash import xxh3_128_hexdigest

from echorl_core.deltas import Bits, bits
from echorl_trainer.deltas import DeltaShare, delta_of

THREADS = 4
_ENDS_S = 5.0


class MappedFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a snapshot."""

    descriptor: int
    size: int
    width: int
    """Bytes of an element."""
    places: dict[str, tuple[int, int]]
    """First byte of each tensor and the byte after its last, by name."""


class MappedSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """All files of a snapshot, and the one for what it changed."""

    files: list[MappedFile]
    delta: int
    """Descriptor."""


class Comparison(msgspec.Struct, frozen=True, array_like=True):
    """What is told of a version."""

    digests: dict[str, str]
    """xxh3-128 of each tensor's bytes, by name."""
    delta: DeltaShare | None


class Compares(Protocol):
    """Somebody who compares snapshots."""

    def __call__(self, new: int, base: int | None) -> Comparison:
        """Digests of the snapshot of that number, and how it is made from another one; None: from none."""
        ...


class Comparer:
    """Compares snapshots in this process."""

    def __init__(self, snapshots: Sequence[MappedSnapshot], *, threads: int = THREADS) -> None:
        self._snapshots, self._threads = snapshots, threads
        self._tensors = [_tensors(one) for one in snapshots]

    def __call__(self, new: int, base: int | None) -> Comparison:
        """See ``Compares``."""
        tensors = self._tensors[new]
        delta = None
        if base is not None:
            delta = delta_of(self._tensors[base], tensors, self._snapshots[new].delta, threads=self._threads)
        with ThreadPoolExecutor(self._threads) as pool:
            return Comparison(dict(zip(tensors, pool.map(xxh3_128_hexdigest, tensors.values()), strict=True)), delta)


class ComparingProcess:
    """Has snapshots compared in a process of its own."""

    def __init__(self, snapshots: Sequence[MappedSnapshot], *, deadline_s: float, threads: int = THREADS) -> None:
        """``deadline_s`` bounds an answer.

        Raises:
            RuntimeError: the process has ended at once.
        """
        self._deadline_s = deadline_s
        self._connection, theirs = Pipe()
        descriptors = {each for one in snapshots for each in (one.delta, *(file.descriptor for file in one.files))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "echorl_trainer.comparing", str(theirs.fileno()), str(threads)],
            pass_fds=(theirs.fileno(), *descriptors),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._send(snapshots)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def __call__(self, new: int, base: int | None) -> Comparison:
        """See ``Compares``.

        Raises:
            RuntimeError: the process is gone.
            TimeoutError: it did not answer before the deadline.
        """
        self._send((new, base))
        try:
            if not self._connection.poll(self._deadline_s):
                raise TimeoutError(f"a version was not compared within {self._deadline_s:g} s")
            return msgspec.msgpack.decode(self._connection.recv_bytes(), type=Comparison)
        except (EOFError, ConnectionError) as error:
            raise self._gone() from error

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.wait(_ENDS_S)

    def _send(self, what: object) -> None:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(what))
        except ConnectionError as error:
            raise self._gone() from error

    def _gone(self) -> RuntimeError:
        code = self._process.wait(_ENDS_S)
        return RuntimeError(f"the process that compares versions has ended with code {code}")


def _tensors(snapshot: MappedSnapshot) -> Mapping[str, Bits]:
    found: dict[str, Bits] = {}
    for file in snapshot.files:
        view = memoryview(mmap.mmap(file.descriptor, file.size, prot=mmap.PROT_READ))
        found |= {name: bits(view[first:after], file.width) for name, (first, after) in file.places.items()}
    return found


def main(arguments: Sequence[str]) -> int:
    """Compare what the rank asks for, until it has closed the connection."""
    # In the rank's group, to be killed with it; but a rank that is asked to end may still want an answer.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, threads = map(int, arguments)
    connection = Connection(descriptor)
    try:
        compare = Comparer(msgspec.msgpack.decode(connection.recv_bytes(), type=list[MappedSnapshot]), threads=threads)
        while True:
            new, base = msgspec.msgpack.decode(connection.recv_bytes(), type=tuple[int, int | None])
            connection.send_bytes(msgspec.msgpack.encode(compare(new, base)))
    except (EOFError, ConnectionError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
