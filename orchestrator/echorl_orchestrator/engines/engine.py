"""One engine's life: its states, the policy it holds, and the calls that run on it."""

import asyncio
from collections.abc import Callable, Mapping
from enum import StrEnum

from echorl_core.wire.run_state import EngineView
from echorl_core.wire.weights import PolicyId
from echorl_orchestrator.engines.calls import Calls


class EngineState(StrEnum):
    """Where an engine stands. Only ``SERVING`` takes new requests."""

    DISCOVERED = "discovered"
    """An address from a name; nothing that may be used has answered there yet."""
    STARTING = "starting"
    """Answers with its identity, its health is not good yet."""
    SYNCING = "syncing"
    """Healthy, but does not hold a version that this pool has verified."""
    SERVING = "serving"
    UPDATING = "updating"
    """Between pause and probe. Its requests are frozen or go on; new ones wait."""
    DRAINING = "draining"
    """It was given notice, and others serve: its requests go on as long as it lives, new ones go elsewhere, and it is
    not updated. Once no other one serves, it does again."""
    QUARANTINED = "quarantined"
    """Holds weights that are not what they should be, answers what cannot be true, or cannot be updated; its requests
    were given up."""
    LOST = "lost"
    """Gone, or restarted. Final: what answers at the address later is another engine."""


LEGAL: Mapping[EngineState, frozenset[EngineState]] = {
    EngineState.DISCOVERED: frozenset({EngineState.STARTING, EngineState.LOST}),
    EngineState.STARTING: frozenset({EngineState.SYNCING, EngineState.LOST}),
    EngineState.SYNCING: frozenset(
        {EngineState.SYNCING, EngineState.SERVING, EngineState.QUARANTINED, EngineState.LOST}
    ),
    EngineState.SERVING: frozenset(
        {EngineState.UPDATING, EngineState.DRAINING, EngineState.QUARANTINED, EngineState.LOST}
    ),
    EngineState.UPDATING: frozenset({EngineState.SERVING, EngineState.QUARANTINED, EngineState.LOST}),
    EngineState.DRAINING: frozenset({EngineState.SERVING, EngineState.LOST}),
    EngineState.QUARANTINED: frozenset({EngineState.SYNCING, EngineState.LOST}),
    EngineState.LOST: frozenset(),
}

COUNTED = frozenset({EngineState.SERVING, EngineState.UPDATING})
"""States in which new requests may still be sampled with the held version."""

VERIFIED = frozenset({EngineState.SERVING, EngineState.DRAINING})
"""States in which the weights are known to be those of the held version."""

_GIVES_UP_CALLS = frozenset({EngineState.QUARANTINED, EngineState.LOST})


class Engine:
    """One start of one server: another boot id is another Engine, also at the same address."""

    def __init__(self, address: str, changed: Callable[[], None]) -> None:
        self.address = address
        self.boot_id: str | None = None
        self.state = EngineState.DISCOVERED
        self.held: PolicyId | None = None
        """What it holds by its own word (before it serves) or by ours (from then on)."""
        self.fresh = True
        """It held no policy of this run when it was found."""
        self.paused = False
        self.noticed = False
        """It was given notice, and ends."""
        self.draining = False
        """It takes no more requests, by its own word."""
        self.running = 0
        """Requests that run on it, by its own count."""
        self.error: str | None = None
        self.in_flight = 0
        """Calls of this pool that wait for its answer."""
        self.pinned = 0
        """Episodes that stick to it."""
        self.pace: float | None = None
        """Tokens a second that it sampled for one stream, when it was seen last."""
        self.impossible = 0
        """Answers of it that cannot be true."""
        self.suspect = asyncio.Event()
        """Set when a call failed in a way that asks for a look at the engine's identity right now."""
        self.calls = Calls()
        """The calls to it that run at the moment."""
        self._changed = changed

    @property
    def version(self) -> int:
        """Version that it holds; -1: unknown."""
        return -1 if self.held is None else self.held.version

    @property
    def lost(self) -> bool:
        """Whether its life is over."""
        return self.state is EngineState.LOST

    def move(self, state: EngineState, *, error: str | None = None) -> None:
        """Enter ``state``; ``error`` says why, None clears the last error.

        Raises:
            ValueError: the transition is not legal: a bug of ours.
        """
        if state not in LEGAL[self.state]:
            raise ValueError(f"engine {self.address}: {self.state} -> {state}; from there: {sorted(LEGAL[self.state])}")
        self.state = state
        self.error = error
        if state in _GIVES_UP_CALLS:
            self.held = None
            self.interrupt(error or state)
        self._changed()

    def serve(self, *, error: str | None = None) -> None:
        """Serve after an update; an engine that has said meanwhile that it drains does that."""
        self.move(EngineState.SERVING, error=error)
        if self.draining:
            self.move(EngineState.DRAINING, error="given notice")

    def distrust(self, error: str) -> None:
        """It has answered what cannot be true: nothing of it is used until its weights are loaded and probed anew."""
        self.impossible += 1
        if self.state is EngineState.SERVING:
            self.move(EngineState.QUARANTINED, error=error)

    def interrupt(self, reason: str) -> None:
        """Give up every call that runs on the engine now; later calls are not concerned."""
        given_up, self.calls = self.calls, Calls()
        given_up.give_up(reason)

    def note(self, error: str) -> None:
        """Keep an error for people without leaving the state."""
        self.error = error

    def view(self) -> EngineView:
        """What the run's state tells of it."""
        return EngineView(
            name=self.address,
            state=str(self.state),
            version=None if self.held is None else self.held.version,
            boot_id=self.boot_id,
            running=self.running,
            error=self.error,
        )
