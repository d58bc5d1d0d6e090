"""Runs in a pod of a run, by ``python -c``: writes what the run's folder holds beyond what is known of it.

One line of JSON comes in: known files by path, each with its inode number and size, and how many bytes may be sent. Of
each file with more, a line goes out, ``[path, inode, offset, length]``, and then its bytes. What the page reads is sent
and nothing else; no link is followed. It is text for another interpreter, so it imports nothing of ours.
"""

import json
import os
import sys
from pathlib import Path

SHOWN = ("run.json", "manifest.yaml", "attempts", "records", "tokens")


def files(root: Path) -> list[Path]:
    """Paths below ``root``."""
    found = []
    for path in map(root.joinpath, SHOWN):
        if path.is_file() and not path.is_symlink():
            found.append(path)
        for folder, _, inside in os.walk(path):
            found += [Path(folder, name) for name in sorted(inside) if name[0] != "."]
    return found


def main() -> None:
    """Send what is new."""
    root = Path(sys.argv[1])
    asked = json.loads(sys.stdin.readline())
    left = asked["most"]
    for path in files(root):
        name = str(path.relative_to(root))
        inode, have = asked["known"].get(name, (0, 0))
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                there = os.fstat(file.fileno())
                start = have if inode == there.st_ino and have <= there.st_size else 0
                if start == there.st_size and inode == there.st_ino:
                    continue
                file.seek(start)
                data = file.read(left)
        except OSError:
            continue
        sys.stdout.buffer.write(json.dumps([name, there.st_ino, start, len(data)]).encode() + b"\n" + data)
        left -= len(data)
        if left <= 0:
            return


if __name__ == "__main__":
    main()
