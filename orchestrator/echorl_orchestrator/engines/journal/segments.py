"""The journal's files: one is written at a time, the next begins when a batch is sealed, whole ones are removed.

    attempts/N/turns/000002-000005.log     the second process of the attempt, its fifth file

The first record of a file says whose it is. Blocking; callers run it in a thread.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.engines.journal.frames import framed, unframed
from echorl_orchestrator.engines.journal.parts import Part

log = structlog.get_logger()

_NAME = re.compile(r"^(\d+)-(\d+)\.log$")
FOLDER = "turns"

Settled = Callable[[str, int], bool]
"""Whether nobody plays the task of an environment's ordinal again."""


class _Owner(msgspec.Struct, frozen=True, array_like=True):
    run_uid: str
    attempt: int


@dataclass
class _File:
    tasks: set[tuple[str, int]] = field(default_factory=set)
    size: int = 0


class Segments:
    """The files of one attempt, for one process. ``read`` comes first."""

    def __init__(self, run: RunDirectory, identity: RunIdentity) -> None:
        self._attempts, self._folder = run.attempt(0).parent, run.attempt(identity.attempt) / FOLDER
        self._attempt = identity.attempt
        self._owner = msgspec.msgpack.encode(_Owner(identity.uid, identity.attempt))
        self._files: dict[Path, _File] = {}
        self._number = 1
        self.process = 1
        """Which process of the attempt this is."""
        self.file = self._file()
        """The file that is written now."""
        self.bytes = 0
        """Of all files, and of what is noted for them."""

    def read(self) -> Iterator[Part]:
        """What other processes of this attempt have left, in the order of writing; what other attempts left goes."""
        for attempt in range(1, self._attempt):
            shutil.rmtree(self._attempts / str(attempt) / FOLDER, ignore_errors=True)
        files = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        for file in files:
            if (match := _NAME.match(file.name)) is not None:
                self.process = max(self.process, int(match[1]) + 1)
                self._files[file] = _File()
                yield from self._parts(file)
        self.file = self._file()

    def _file(self) -> Path:
        return self._folder / f"{self.process:06d}-{self._number:06d}.log"

    def _parts(self, file: Path) -> Iterator[Part]:
        try:
            records = unframed(file.read_bytes())
        except OSError as error:
            log.warning("a file of the turn journal cannot be read", file=str(file), error=str(error))
            return
        if next(records, None) != self._owner:
            log.warning("a file of the turn journal is not this attempt's and is left out", file=str(file))
            return
        for record in records:
            try:
                part = msgspec.msgpack.decode(record, type=Part)
            except msgspec.DecodeError as error:
                log.warning("a record of the turn journal cannot be read", file=str(file), error=str(error))
                return
            self.note(file, part, len(record))
            yield part

    def note(self, file: Path, part: Part, size: int) -> None:
        """A file holds, or will hold, this part, which takes ``size`` bytes."""
        entry = self._files.setdefault(file, _File())
        entry.tasks.add((part.key.environment, part.key.ordinal))
        entry.size += size
        self.bytes += size

    def begin(self) -> None:
        """Leave a mark that this process was there, though it may write nothing."""
        self._files.setdefault(self.file, _File())
        try:
            self.write(self.file, b"")
        except OSError as error:
            log.warning("the turn journal cannot be written", file=str(self.file), error=str(error))

    def write(self, file: Path, records: bytes) -> None:
        """Add framed records to the end of a file. Not synced: a node that dies takes the last seconds with it.

        Raises:
            OSError: they are not there, or not whole.
        """
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as opened:
            if opened.tell() == 0:
                opened.write(framed(self._owner))
            opened.write(records)

    def rotate(self) -> None:
        """What comes from here on goes to another file, if this one has anything."""
        if self.file in self._files:
            self._number += 1
            self.file = self._file()

    def settled(self, settled: Settled) -> list[Path]:
        """Files that nobody needs any more, forgotten here; to be removed."""
        done = [file for file, entry in self._files.items() if all(settled(*task) for task in entry.tasks)]
        for file in done:
            self.bytes -= self._files.pop(file).size
        return done

    def remove(self, files: list[Path]) -> None:
        """Remove files; one that is gone is ignored."""
        for file in files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("a file of the turn journal is not removed", file=str(file), error=str(error))

    def clear(self) -> None:
        """Remove them all."""
        shutil.rmtree(self._folder, ignore_errors=True)
