"""Reads what W&B's client writes offline: a log in LevelDB's format that holds protocol buffers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_FILE_HEADER = 7
_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _LAST = 1, 4


def records(file: Path) -> Iterator[Record]:
    """Records of a ``.wandb`` file."""
    data, at, parts = file.read_bytes(), _FILE_HEADER, b""
    while at + _HEADER.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        parts += data[at : at + length]
        at += length
        if kind in {_FULL, _LAST}:
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


def history(file: Path) -> list[dict[str, Any]]:
    """Logged rows, without the client's own columns."""
    rows = []
    for record in records(file):
        if record.WhichOneof("record_type") == "history":
            found = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({name: value for name, value in found.items() if not name.startswith("_")})
    return rows
