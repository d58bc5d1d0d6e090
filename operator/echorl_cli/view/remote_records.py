"""Runs in a pod of a run, by ``python -c``: writes what the run's folder holds beyond what is known of it.

One line of JSON comes in: known files by path, each with its inode number and size, and how many bytes may be sent. Of
each file with more, a line goes out, ``[path, inode, offset, length]``, and then its bytes. What the page reads is sent
and nothing else; no link is followed. It is text for another interpreter, so it imports nothing of ours.
"""

import json
import os
import sys

SHOWN = ("run.json", "manifest.yaml", "attempts", "records", "tokens")


def files(root: str) -> list[str]:
    """Paths below ``root``, relative to it."""
    found = []
    for name in SHOWN:
        path = os.path.join(root, name)
        if os.path.isfile(path) and not os.path.islink(path):
            found.append(name)
        for folder, _, inside in os.walk(path):
            found += [os.path.relpath(os.path.join(folder, one), root) for one in sorted(inside) if one[0] != "."]
    return found


def main() -> None:
    """Send what is new."""
    root = sys.argv[1]
    asked = json.loads(sys.stdin.readline())
    left = asked["most"]
    for path in files(root):
        inode, have = asked["known"].get(path, (0, 0))
        try:
            with open(os.open(os.path.join(root, path), os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                there = os.fstat(file.fileno())
                start = have if inode == there.st_ino and have <= there.st_size else 0
                if start == there.st_size and inode == there.st_ino:
                    continue
                file.seek(start)
                data = file.read(left)
        except OSError:
            continue
        sys.stdout.buffer.write(json.dumps([path, there.st_ino, start, len(data)]).encode() + b"\n" + data)
        left -= len(data)
        if left <= 0:
            return


if __name__ == "__main__":
    main()
