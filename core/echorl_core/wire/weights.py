"""What the trainer announces and serves: policy versions, and how an engine is checked after an update."""

from typing import Literal, TypeVar

import msgspec

WIRE_VERSION = 2
"""Of announcements and manifests; 2: a digest for every tensor, in place of one for every file."""

DELTA_FILE = "delta.bin"

Message = TypeVar("Message", "PolicyAnnouncement", "WeightManifest")


class _Versioned(msgspec.Struct):
    wire_version: int = 1
    """Version 1 did not say so."""


def decode(data: bytes, kind: type[Message]) -> Message:
    """Read an announcement or a manifest.

    Raises:
        msgspec.DecodeError: it is of another wire version, or has a field that this one does not know; or it is none.
    """
    found = msgspec.json.decode(data, type=_Versioned).wire_version
    if found != WIRE_VERSION:
        raise msgspec.ValidationError(f"wire_version: found {found}, accepted is {WIRE_VERSION}")
    return msgspec.json.decode(data, type=kind)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """A fixed sequence and its logprobs under a policy version, to check an engine after an update."""

    token_ids: list[int]
    logprobs: list[float]
    """Natural log, of tokens 1.. given their prefix: one fewer than ``token_ids``."""
    tolerance: float
    """Largest absolute difference that an engine may show."""


class PolicyId(msgspec.Struct, frozen=True, kw_only=True):
    """One published version of one attempt: what an engine holds, and the body of ``POST /echorl/apply``."""

    attempt: int
    version: int
    digest: str
    """sha256 of the weight manifest's bytes, in lower-case hex."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} version {self.version} digest {self.digest[:12]}"


class DeltaSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a version differs from the one before it, for those who only watch; engines read the manifest."""

    base_version: int
    size_bytes: int
    changed_ratio: float
    """Share of all elements that are not what they were, bit for bit."""


class PolicyAnnouncement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The trainer holds a new policy version and serves its weights at ``url``."""

    wire_version: int = WIRE_VERSION
    attempt: int
    version: int
    kind: Literal["full", "adapter"] = "full"
    name: str = "policy"
    digest: str
    """sha256 of the weight manifest's bytes."""
    url: str
    """Address of the weight manifest: ``http://host:port/...`` or ``file:///...``."""
    size_bytes: int
    seconds_gather: float
    probe: Probe | None = None
    delta: DeltaSize | None = None
    """None: the version is published as a whole alone."""
    broadcast: bool = False
    """Whether engines' workers may ask for a seat in a broadcast of it (``wire/broadcast.py``)."""

    @property
    def policy(self) -> PolicyId:
        """What an engine that has applied it says that it holds."""
        return PolicyId(attempt=self.attempt, version=self.version, digest=self.digest)

    def supersedes(self, other: "PolicyAnnouncement") -> bool:
        """Whether engines are to be brought to it rather than to ``other``, of the same attempt.

        The same version is announced anew by a gang that was started again in place: another process serves it.
        """
        return self.version > other.version or (self.version == other.version and self != other)


class WeightFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of a published policy version: safetensors, or an adapter's config."""

    name: str
    size: int
    folder: str | None = None
    """``http://host:port/.../`` of the rank that serves it; None: it is beside the manifest."""


class TensorInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shape and safetensors dtype ("F32", "BF16", ...) of one published tensor."""

    dtype: str
    shape: list[int]
    file: str
    xxh3: str
    """XXH3 (128 bits) of the tensor's bytes, in lower-case hex. Every value is finite: the trainer has looked."""


class TensorChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the delta's file says what a tensor is now."""

    offset: int
    """First byte."""
    size: int
    """Bytes."""
    changed: int | None = None
    """Elements that ``echorl_core.deltas`` names there; None: these are the bytes of the whole tensor."""


class DeltaPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some bytes of a delta's file, as a file ``DELTA_FILE`` of their own."""

    folder: str | None
    """As ``WeightFile`` says it."""
    size: int


class WeightDelta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a version is made from another one, bit for bit; the manifest's digests are those of the result."""

    base: PolicyId
    """Of the same files, names and shapes."""
    size: int
    """Bytes of the file ``DELTA_FILE`` beside the manifest, or of all its parts."""
    tensors: dict[str, TensorChange]
    """What is not named is as in the base."""
    parts: list[DeltaPart] = msgspec.field(default_factory=list)
    """Of which the file is made, one after the other; empty: it is one."""


class WeightManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a published policy version consists of, in Hugging Face's or PEFT's names; JSON on the wire."""

    wire_version: int = WIRE_VERSION
    run_uid: str
    attempt: int
    version: int
    kind: Literal["full", "adapter"] = "full"
    files: list[WeightFile]
    tensors: dict[str, TensorInfo]
    delta: WeightDelta | None = None
    """For readers that have its base; the files hold the whole version all the same."""
