"""How weights reach the engines where a run leaves that open: what each way would take, and which is taken."""

from dataclasses import dataclass
from typing import Literal

BROADCAST_BYTES_PER_S = 10e9
"""Assumed of NCCL between hosts; NVLink has more, and the host's copies at both ends run beside."""
BROADCAST_ROUND_S = 0.05
"""Assumed for the group's members to be asked."""
HTTP_BYTES_PER_S = 1e9
"""Assumed of one trainer's server, for an engine."""


@dataclass(frozen=True)
class Choice:
    """The way that was taken, and why."""

    mode: Literal["http", "nccl"]
    why: str


def chosen_transfer(size_bytes: int, *, trainer_on_gpu: bool, engines_on_gpus: bool) -> Choice:
    """The way for versions of ``size_bytes`` that is expected to take less time, already to a single engine.

    Rates are assumed, none is measured. Without GPUs on both sides there is no NCCL.
    """
    if not (trainer_on_gpu and engines_on_gpus):
        without = "the trainer has" if not trainer_on_gpu else "the engines have"
        return Choice("http", f"{without} no GPU, which NCCL needs at both ends")
    http_s = size_bytes / HTTP_BYTES_PER_S
    broadcast_s = BROADCAST_ROUND_S + size_bytes / BROADCAST_BYTES_PER_S
    why = (
        f"{size_bytes} bytes take {http_s:.3f} s over HTTP at {HTTP_BYTES_PER_S / 1e9:g} GB/s, "
        f"{broadcast_s:.3f} s by broadcast at {BROADCAST_BYTES_PER_S / 1e9:g} GB/s; both rates are assumed"
    )
    return Choice("nccl" if broadcast_s < http_s else "http", why)
