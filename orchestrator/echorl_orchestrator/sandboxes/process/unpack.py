"""The program that unpacks an archive: ``python -S -P -m echorl_orchestrator.sandboxes.process.unpack USER < ARCHIVE``.

It makes the working folder its whole world before it reads a byte, so that no name and no link of the archive leads
anywhere else, and it has no rights by which a device could be made. Files belong to USER (empty: to whoever runs it).

Everything is imported before: nothing of Python can be read from then on.
"""

import bz2
import gzip
import lzma
import os
import stat
import sys
import tarfile
import zlib

from echorl_orchestrator.sandboxes.process import kernel

READERS = (bz2, gzip, lzma, zlib)
"""Of which tarfile imports what it needs, when it does."""


def _ours(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The member as this user can make it, and read it afterwards."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = stat.S_IMODE(member.mode) & 0o777 | (0o700 if member.isdir() else 0o400)
    return member


def main() -> None:
    """Unpack; exit code 1 with a line on stderr where that cannot be done."""
    try:
        kernel.become(int(sys.argv[1]) if sys.argv[1] else None)
        kernel.unshare_as_root(0)
        os.chroot(".")
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r:*") as archive:
            # Given as an attribute: Python before 3.11.4 has no filters, and passes over it.
            archive.extraction_filter = lambda member, _: member
            archive.extractall("/", members=[_ours(member) for member in archive])  # noqa: S202 - it is the whole world
    except (OSError, tarfile.TarError) as error:
        sys.stderr.write(f"{error}\n")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
