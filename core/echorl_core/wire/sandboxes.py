"""What an orchestrator asks a broker of sandboxes for, and what it is told (JSON).

``PUT``, ``GET`` and ``DELETE /runs/{namespace}/{run}/sandboxes/{key}``, ``GET /runs/{namespace}/{run}/sandboxes``, each
with the run's ``sandboxes_key`` as bearer. Every call is idempotent by its key. A ``GET`` of one answers as its
``PUT``, and makes none. ``DELETE /runs/{namespace}/{run}/sandboxes?owner=OWNER`` ends all whose key begins with
``OWNER-``: those of a process that is gone.
"""

from enum import StrEnum
from typing import Annotated, Literal, TypeVar

import msgspec

BROKER_PORT = 8090
"""Where a broker listens."""
KEY_FORM = r"^[A-Za-z0-9][-._A-Za-z0-9]{0,62}$"
"""What the key of a sandbox looks like."""
OWNER_FORM = r"^[A-Za-z0-9]{8}$"
"""What the owner in a key looks like."""
LONGEST_WAIT_S = 60.0
"""A ``PUT`` that says more in ``wait_s`` waits this long."""

Loss = Literal["refused", "image", "start", "evicted", "lost", "expired", "overused"]
"""Values of ``SandboxLoss``, in the contract of sandboxes."""
_Amount = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
_Path = Annotated[str, msgspec.Meta(pattern=r"^/", max_length=4096)]
T = TypeVar("T", bound=msgspec.Struct)


class Why(StrEnum):
    """What a sandbox that was asked for waits for, in one word."""

    LIMIT = "limit"
    """The run has as many as it may: four for each of ``sandboxes.concurrency``."""
    QUOTA = "quota"
    """The namespace's ResourceQuota."""
    ADMISSION = "admission"
    """The API server does not take the pod for another reason that passes: a webhook, a service account."""
    NODE = "node"
    """No node has it yet."""
    IMAGE = "image"
    """Its image does not come yet."""
    START = "start"
    """Its containers start."""
    FORERUNNER = "forerunner"
    """A pod of its name, of an earlier orchestrator or call, still ends."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one sandbox may use; the run's own limits hold where these are more."""

    cpu: Annotated[float, msgspec.Meta(gt=0, le=1024)]
    memory_bytes: _Amount
    disk_bytes: _Amount
    processes: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)] = 1 << 22
    """And threads, of all commands together."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a ``PUT``."""

    run_uid: str
    """Of the run that asks: one of the same name may have taken its place."""
    image: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    workdir: _Path
    limits: Limits
    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=1e8)]
    gateway: bool = False
    volumes: dict[str, str] = {}


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """200: the sandbox answers at ``address`` to who has ``token``."""

    address: str
    token: str
    gateway: str | None = None
    """Base URL of the gateway as it is reached from inside; null where it was not asked for."""


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """202: ask again."""

    reason: str
    why: str = ""
    """A value of ``Why``; empty, or another, of a broker of another version."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Every other status: there is no such sandbox, or not any more."""

    loss: Loss
    message: str


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """200 to a ``GET`` of all."""

    keys: list[str]


def decoded(body: bytes, kind: type[T]) -> T:
    """Read a body.

    Raises:
        msgspec.MsgspecError: it is not what is described here.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
