"""How an engine's worker asks the trainer for a seat in the broadcast of a version, and what it is told (JSON)."""

from typing import Literal

import msgspec


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST <folder of the manifest>/join``: a worker that is ready to receive this version."""

    worker: str
    """Drawn anew at each start of the worker."""
    device: Literal["cpu", "cuda"]
    gpu: str | None = None
    """UUID of its GPU: NCCL takes one peer from each."""
    library: str
    """What carries the broadcast, with versions, as ``library_of`` tells it: the same on all sides."""
    group: str | None = None
    """The group that it is in since an earlier version."""


class Seat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Answer: the group that the version goes through. The first ranks are the trainer's, and broadcast."""

    group: str
    """Prefix of its keys in the store; the same as that of an earlier version: the group of that time."""
    port: int
    """Of the TCPStore, at the host of the manifest's address."""
    rank: int
    size: int
    slice_bytes: int
    """Of one broadcast at most."""
    timeout_s: float
    """For all of them together."""
    senders: list[int] = []
    """Which rank has each file of the manifest, in order; empty: rank 0 has all."""


def slices(size: int, slice_bytes: int) -> list[tuple[int, int]]:
    """First byte and byte after the last of each broadcast of ``size`` bytes, in order."""
    return [(first, min(first + slice_bytes, size)) for first in range(0, size, slice_bytes)]
