"""``GET /state`` of an orchestrator: what a run does, for its supervisor, the operator and people (JSON).

Everything but who it is has a default, so that a reader follows an orchestrator of an older version too. Readers ignore
keys that they do not know. Times are ISO 8601 in UTC, numbers that are not finite are null.
"""

from typing import Any

import msgspec

from echorl_core.names import Phase
from echorl_core.wire.goodput import Goodput


class VersionRange(msgspec.Struct, frozen=True, kw_only=True):
    """Lowest and highest policy version that serving engines hold."""

    min: int
    max: int


class PolicyState(msgspec.Struct, frozen=True, kw_only=True):
    """Policy versions that are trained and served."""

    trained: int | None = None
    """The newest version that the trainer has announced."""
    served: VersionRange | None = None
    """Null while no engine serves."""
    staleness_max: float | None = None
    """Of the samples in the newest trained batch, in versions."""


class CheckpointState(msgspec.Struct, frozen=True, kw_only=True):
    """The newest committed checkpoint; all null before the first."""

    step: int | None = None
    committed: list[int] = []
    """Steps of all committed checkpoints that are there."""
    size_bytes: int | None = None
    committed_at: str | None = None
    path: str | None = None
    """Of its folder, relative to the run directory."""
    abandoned: str | None = None
    """Why the latest checkpoint that could not be saved was not."""
    abandoned_step: int | None = None
    """Its step, until another one is committed; null as long as none was lost since the newest commit."""


class EngineView(msgspec.Struct, frozen=True, kw_only=True):
    """One engine as the orchestrator sees it."""

    name: str
    """``host:port``."""
    state: str
    """discovered, starting, syncing, serving, updating, draining, quarantined or lost."""
    version: int | None = None
    boot_id: str | None = None
    running: int | None = None
    """Requests in flight, by the engine's own word."""
    error: str | None = None


class RestartsInPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Restarts of the trainer's processes in this attempt, from copies in memory."""

    count: int = 0
    reason: str = ""
    """Of the newest one."""
    replacements: int = 0
    """In how many of them another pod has taken the place of a lost one."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per second over the last steps."""

    sampled_tokens_per_s: float | None = None
    trained_tokens_per_s: float | None = None


class EpisodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Episodes since this attempt's orchestrator started."""

    running: int | None = None
    """In flight, evals included."""
    finished: int | None = None
    failed: int | None = None
    dropped_stale: int | None = None
    groups_partial: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that no restart cures."""

    exit_code: int | None = None
    message: str = ""


class InfrastructureLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A train environment that loses more of its newest episodes to infrastructure than it may."""

    environment: str
    share: float
    """Of its newest episodes, two digits."""
    limit: float
    """``maxInfrastructureShare``."""
    error: str
    """Of the newest one, with its kind."""


class SandboxWaits(msgspec.Struct, frozen=True, kw_only=True):
    """Sandboxes that wait for the same."""

    why: str
    """A value of ``wire.sandboxes.Why``."""
    count: int
    reason: str
    """The broker's words on the newest of them."""


class SandboxesState(msgspec.Struct, frozen=True, kw_only=True):
    """Sandboxes of episodes, by the word of those who asked for them."""

    waiting: list[SandboxWaits] = []
    """Those in pods that were asked for half a minute ago or earlier, and are not there yet."""
    lost: dict[str, int] = {}
    """How many could not be made or were lost since this attempt's orchestrator started, by ``wire.sandboxes.Loss``."""


class RunState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the orchestrator answers to ``GET /state``."""

    revision: int = 0
    """Changes exactly when anything but ``unmoved_s`` does; ``since`` of a long poll."""
    unmoved_s: float | None = None
    """Seconds since step or phase changed last, as far as this process knows."""
    run: str = ""
    uid: str
    attempt: int
    phase: Phase
    step: int | None = None
    """The newest trained step."""
    max_steps: int | None = None
    start_step: int | None = None
    """That this attempt resumed from."""
    live_generation: int | None = None
    """Generation of the manifest whose live settings are in effect; 0: those that it was started with."""
    waiting_for: str | None = None
    """One sentence: what the run waits for, and why."""
    volume_full: str | None = None
    """What the run cannot write for want of room, and why; it goes on when there is room. Null while there is."""
    policy: PolicyState = PolicyState()
    checkpoint: CheckpointState = CheckpointState()
    reward: float | None = None
    """Mean of the newest trained batch."""
    steps_without_rl: int | None = None
    """Newest trained steps in a row from whose rewards nothing could be learned: the policy gradient had no token with
    an advantage other than 0. ECHO may have trained in them. Null before the first, and where nothing has a policy
    gradient."""
    infrastructure_losses: list[InfrastructureLoss] | None = None
    """Train environments that lose too many of their newest 64 episodes to engines, sandboxes or workers. Null while
    too few have ended to tell."""
    sandboxes: SandboxesState | None = None
    """Null: the run has no ``spec.sandboxes``."""
    env_nll: float | None = None
    """Nats per environment token of the newest trained batch."""
    engines: list[EngineView] = []
    rates: Rates = Rates()
    episodes: EpisodeCounts = EpisodeCounts()
    eval: dict[str, dict[str, Any]] = {}
    """Newest row of evals.jsonl by environment, without examples."""
    goodput: Goodput | None = None
    """Where the time of the run's GPUs went, measured once a minute and at the end. Null before."""
    restarts_in_place: RestartsInPlace = RestartsInPlace()
    failure: Failure | None = None


_DECODER = msgspec.json.Decoder(RunState)


def decode_run_state(body: bytes) -> RunState:
    """Read an answer.

    Raises:
        msgspec.MsgspecError: it is not what is described here.
    """
    try:
        return _DECODER.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        # Text that is not UTF-8, and nesting without end, are told otherwise than all else that is wrong.
        raise msgspec.DecodeError(str(error)) from error
