"""Frames between the orchestrator and its workers: a length of 4 bytes, then one msgpack map.

to the worker      {"start": {...}} once, then {"id", "op", "episode", "args"}, {"id", "cancel": true}, {"ping": n}
from the worker    {"ready": {...}} or {"refused": text} once, then {"id", "value"}, {"id", "error": {...}}, {"pong": n}
"""

import asyncio
from typing import Any

import msgspec

_HEADER = 4
_MAX_FRAME = 256 * 2**20


class FrameError(Exception):
    """A value that cannot be sent, or bytes that are no frame."""


def _plain(value: Any) -> Any:
    """Numpy scalars and arrays, sets and other containers as what they hold."""
    for method in ("tolist", "item"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise NotImplementedError(f"{type(value).__name__} cannot cross to the orchestrator; use plain JSON-like values")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoder = msgspec.msgpack.Decoder()


def encode(message: dict[str, Any]) -> bytes:
    """One frame.

    Raises:
        FrameError: the message holds something that msgpack has no form for, or is too long.
    """
    try:
        data = _encoder.encode(message)
    except (NotImplementedError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FrameError(str(error)) from None
    if len(data) > _MAX_FRAME:
        raise FrameError(f"message has {len(data)} bytes, accepted are {_MAX_FRAME}")
    return len(data).to_bytes(_HEADER, "big") + data


def write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Queue bytes for the other process, for every pipe and socket to one.

    Raises:
        ConnectionError: the transport is closed. asyncio would drop the bytes; uvloop raises a bare RuntimeError, which
            must not pass for a bug of ours: a process may die at any moment.
    """
    if writer.is_closing():
        raise ConnectionResetError("the connection is closed")
    try:
        writer.write(data)
    except RuntimeError as error:
        raise ConnectionResetError(str(error)) from error


async def read(reader: asyncio.StreamReader) -> dict[str, Any]:
    """The next message.

    Raises:
        asyncio.IncompleteReadError: the other side is gone.
        FrameError: no frame.
    """
    size = int.from_bytes(await reader.readexactly(_HEADER), "big")
    if size > _MAX_FRAME:
        raise FrameError(f"frame of {size} bytes, accepted are {_MAX_FRAME}")
    data = await reader.readexactly(size)
    try:
        message = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"frame cannot be read: {error}") from None
    if not isinstance(message, dict):
        raise FrameError(f"frame holds {type(message).__name__}, accepted is a map")
    return message
