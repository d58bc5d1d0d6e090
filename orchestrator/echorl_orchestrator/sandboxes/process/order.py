"""What a holder is told and says: messages of JSON, with descriptors, over a socket that keeps them apart."""

import array
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

NEEDED_LATER = (array,)
"""By ``socket.recv_fds``, when the user may no longer read Python's own files."""

_MOST_DESCRIPTORS = 4
_REPLY_BYTES = 1 << 16


@dataclass(frozen=True)
class Order:
    """The sandbox that a holder is to make; paths are relative to its working folder."""

    worker: int
    """Process whose end ends the sandbox."""
    user: int | None
    """Host's user to become before anything else; None: stay."""
    bwrap: str
    workdir: str
    ttl_s: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    gateway: bool
    image: str | None
    """Folder that is shown beneath what is written; None: an empty one."""
    shown: list[tuple[str, str]] = field(default_factory=list)
    """Folders and files, and where they are shown read-only."""
    links: list[tuple[str, str]] = field(default_factory=list)
    """Symbolic links to make: where, and to what."""

    def dumped(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def send(to: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message of any size, of which the text goes through memory."""
    text = os.memfd_create("message")
    try:
        with open(os.dup(text), "wb") as file:
            file.write(json.dumps(message).encode())
        socket.send_fds(to, [b"."], [text, *descriptors])
    finally:
        os.close(text)


def receive(of: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message and its descriptors; None at the end. ``BlockingIOError`` where none has come yet."""
    data, descriptors, _, _ = socket.recv_fds(of, _REPLY_BYTES, _MOST_DESCRIPTORS)
    if not data:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # noqa: FBT003
    with open(descriptors[0], "rb") as file:
        file.seek(0)
        return json.load(file), descriptors[1:]
