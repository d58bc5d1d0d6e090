"""What the pods of a trainer gang tell their first one when their ranks have ended, and what it answers (JSON)."""

import msgspec


class RankEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How one rank's process ended."""

    rank: int
    status: int
    """Exit code; negative: the signal that ended it."""
    asked: bool
    """It was told to end before."""


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """What a gang has become of; another first pod goes on from what the others were told of it last."""

    restarts: int
    """How many restarts in place there have been."""
    replacements: int = 0
    """In how many of them another pod had taken the place of a lost one."""
    instances: tuple[str, ...] = ()
    """Which pods the gang is of, by index, where others may take their place."""


class PodEnds(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks of a pod have ended."""

    pod: int
    """Its index."""
    restarts: int
    """How many restarts in place came before these ranks."""
    ends: list[RankEnd]
    """In the order in which they were seen."""
    held: list[int]
    """Steps that memory holds of all ranks of the pod."""
    leaves: bool
    """The pod ends, whatever is decided."""
    instance: str = ""
    """Which pod of that index: another one may have taken its place. Empty: nobody may."""
    known: Gang | None = None
    """None where nobody may take a pod's place, and of one that knows of no gang yet."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What follows, for all pods of the gang alike."""

    again: bool
    """Whether all ranks start again in place; else each pod ends."""
    gang: Gang
    """As it is then."""
    reason: str
    """For people."""
    delay_s: float = 0.0
    """Until the start."""
    step: int | None = None
    """That they go on from; of a restart."""
    replaced: tuple[int, ...] = ()
    """Pods that have taken the place of lost ones since the restart before."""


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod must know before its ranks start."""

    gang: Gang
    replaces: bool
    """Whether it takes the place of a lost pod: its ranks start with all others, from what its neighbour holds."""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a rank of the gang has failed since its last restart in place."""

    failed: bool
