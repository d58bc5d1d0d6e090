"""Classes every second of every trainer rank and engine once. Pure: whoever tells of an event says when it was.

*Trainer.* Ranks step together. The time between two reports is divided by what the second one says of its parts; what
they leave over is what came before: the start, a restart, or a wait.

*Engines.* An engine that starts, updates or has no request is in that state. One with n requests gives each of them an
n-th of its time: what an episode has cost is the sum over its requests, undecided until the episode is trained or
thrown away. So seconds only ever move out of ``undecided``, and all states together are GPUs times seconds.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from echorl_core.wire.goodput import INFERENCE, TRAINER, Seconds, TimeState

_PARTS = {
    "wait_batch": TimeState.WAITING,
    "publish": TimeState.PUBLISHING,
    "checkpoint": TimeState.SAVING,
}
"""State of a step's part, by its name in ``StepReport.seconds``; the rest of the step is its training."""

LONGEST_GAP_S = 3600.0
"""Without an orchestrator. After a longer one nothing is counted for it: a run that lay for days held no GPUs."""


def trainer_interval(
    length_s: float, seconds: Mapping[str, float], *, training: TimeState, rest: TimeState
) -> dict[TimeState, float]:
    """Divide the time up to a step's report among states; they add up to ``length_s``.

    Args:
        length_s: since the report before.
        seconds: of ``StepReport``.
        training: state of the step itself: useful or redone.
        rest: state of what the step's parts leave over. Parts that are longer than the interval, as a report may come
            late, are shortened in proportion.
    """
    parts = {state: max(0.0, seconds.get(name, 0.0)) for name, state in _PARTS.items()}
    parts[training] = max(0.0, seconds.get("step", 0.0) - sum(parts.values()))
    told = sum(parts.values())
    share = min(1.0, length_s / told) if told > 0 else 0.0
    divided = {state: part * share for state, part in parts.items() if part > 0}
    divided[rest] = divided.get(rest, 0.0) + max(0.0, length_s - told)
    return divided


class Cost(msgspec.Struct, forbid_unknown_fields=True):
    """What was sampled for an episode, or for many."""

    seconds: float = 0.0
    """GPU-seconds of engines."""
    tokens: int = 0

    def add(self, other: "Cost") -> None:
        """Take the other's in."""
        self.seconds += other.seconds
        self.tokens += other.tokens


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger is made from again; times are seconds since the epoch."""

    attempt: int
    at: float
    """When it was saved."""
    closed: bool
    """The attempt came to its end: until the next one nobody has these GPUs."""
    ranks: int
    engine_gpus: int
    """GPUs of all engines that were known."""
    trainer_since: float
    """When the newest step was reported, or counting began."""
    reached: int
    """Highest step that was ever trained."""
    redone_to: int
    """Highest step that was trained before the attempt, or the gang's newest restart in place, began."""
    seconds: Seconds
    tokens: dict[TimeState, int]
    """Sampled tokens, by what became of them."""
    undecided: Cost
    """Of episodes in flight or ready."""
    sealed: dict[int, Cost]
    """By the step that trains it."""


@dataclass(eq=False)
class _Engine:
    since: float
    doing: TimeState | None = TimeState.STARTING
    """None: it serves."""
    requests: int = 0
    alive: bool = True
    share_s: float = 0.0
    """Seconds that one request would have had of it since it was found, if there had been one all the time."""


@dataclass(eq=False)
class Request:
    """One request to an engine."""

    engine: _Engine
    episode: str
    from_s: float
    """The engine's ``share_s`` when it began."""


class Ledger:
    """The account of one run, from its first attempt on."""

    def __init__(
        self,
        saved: Saved | None,
        *,
        now: float,
        attempt: int,
        ranks: int,
        gpus_per_engine: int,
        kept_tokens: int = 0,
    ) -> None:
        """Go on from what this attempt, or one before it, has saved.

        Args:
            saved: the newest; None on a run's first start.
            now: seconds since the epoch, as everywhere here.
            attempt: of the run.
            ranks: of the trainer; each is one GPU, or one process without.
            gpus_per_engine: 1 for an engine without a GPU.
            kept_tokens: of what was undecided, that episodes may yet be given again by a journal.
        """
        self._attempt, self._ranks, self._gpus = attempt, ranks, gpus_per_engine
        self._seconds: dict[str, defaultdict[TimeState, float]] = {
            role: defaultdict(float) for role in (TRAINER, INFERENCE)
        }
        self._tokens: Counter[TimeState] = Counter()
        self._engines: dict[str, _Engine] = {}
        self._served: set[str] = set()
        self._requests: set[Request] = set()
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)
        self._sealed: dict[int, Cost] = {}
        self._kept = Cost()
        self._reached = self._redone_to = 0
        self._trainer_since = now
        self._before, self._closed = TimeState.STARTING, False
        if saved is not None:
            self._resume(saved, now, kept_tokens)

    def _resume(self, saved: Saved, now: float, kept_tokens: int) -> None:
        for role, states in saved.seconds.items():
            self._seconds[role].update({TimeState(state): seconds for state, seconds in states.items()})
        self._tokens.update(saved.tokens)
        same = saved.attempt == self._attempt
        self._reached, self._redone_to = saved.reached, saved.redone_to if same else saved.reached
        lost = [saved.undecided]
        if same:
            self._sealed = dict(saved.sealed)
            # Turns that are still open are kept, too, and were not counted yet.
            share = min(1.0, kept_tokens / saved.undecided.tokens) if saved.undecided.tokens else float(kept_tokens > 0)
            self._kept = Cost(saved.undecided.seconds * share, kept_tokens)
            lost = [Cost(saved.undecided.seconds * (1 - share), max(0, saved.undecided.tokens - kept_tokens))]
        else:
            lost += saved.sealed.values()
        for cost in lost:
            self._book(cost, TimeState.LOST)
        if saved.closed:
            return
        self._before = TimeState.RESTARTING
        if now - saved.at > LONGEST_GAP_S:
            return
        self._add(INFERENCE, TimeState.RESTARTING, saved.engine_gpus * max(0.0, now - saved.at))
        if same:
            # The ranks went on: their next report says what they did meanwhile.
            self._trainer_since = min(now, saved.trainer_since)
        else:
            self._add(TRAINER, TimeState.RESTARTING, saved.ranks * max(0.0, now - saved.trainer_since))

    def engine(self, now: float, name: str, doing: TimeState | None) -> None:
        """An engine is there, or does something else from now on; ``doing`` None: it serves."""
        engine = self._engines.setdefault(name, _Engine(now))
        self._advance(engine, now)
        if doing is None:
            self._served.add(name)
        elif doing is TimeState.STARTING and (name in self._served or self._before is TimeState.RESTARTING):
            doing = TimeState.RESTARTING
        engine.doing = doing

    def engine_gone(self, now: float, name: str) -> None:
        """There is no such engine any more."""
        if (engine := self._engines.pop(name, None)) is not None:
            self._advance(engine, now)
            engine.alive = False

    def asked(self, now: float, name: str, episode: str) -> Request:
        """A request of an episode goes to an engine; the episode's members and tries have one name."""
        engine = self._engines.get(name) or _Engine(now, alive=False)
        self._advance(engine, now)
        engine.requests += 1
        request = Request(engine, episode, engine.share_s)
        self._requests.add(request)
        return request

    def answered(self, now: float, request: Request, *, lost: bool) -> None:
        """The request is over; ``lost``: its engine failed it."""
        self._advance(request.engine, now)
        request.engine.requests -= 1
        self._requests.discard(request)
        cost = Cost(self._share(request))
        if lost:
            self._book(cost, TimeState.ENGINE_LOST)
        else:
            self._costs[request.episode].add(cost)

    def sampled(self, episode: str, tokens: int) -> None:
        """An answer holds tokens."""
        self._costs[episode].tokens += tokens

    def kept(self, episode: str, tokens: int) -> None:
        """An episode is given tokens again that were sampled before this process began."""
        self._costs[episode].add(self._of_kept(tokens))

    def not_kept(self, tokens: int) -> None:
        """No episode will be given them."""
        self._book(self._of_kept(tokens), TimeState.LOST)

    def _of_kept(self, tokens: int) -> Cost:
        """What these tokens have cost, taken out of what was kept."""
        share = min(1.0, tokens / self._kept.tokens) if self._kept.tokens else 0.0
        cost = Cost(self._kept.seconds * share, tokens)
        self._kept = Cost(self._kept.seconds - cost.seconds, max(0, self._kept.tokens - tokens))
        return cost

    def decided(self, episode: str, state: TimeState) -> None:
        """What became of all that was sampled for an episode so far. One that nothing is known of is ignored."""
        if (cost := self._costs.pop(episode, None)) is not None:
            self._book(cost, state)

    def sealed(self, step: int, episodes: set[str]) -> None:
        """The batch of ``step`` holds these episodes: it is trained, unless the attempt ends first."""
        whole = self._sealed.setdefault(step, Cost())
        for episode in episodes:
            whole.add(self._costs.pop(episode, Cost()))

    def step(self, now: float, step: int, seconds: Mapping[str, float]) -> None:
        """A step was trained and reported."""
        training = TimeState.REDONE if step <= self._redone_to else TimeState.USEFUL
        length = max(0.0, now - self._trainer_since)
        for state, part in trainer_interval(length, seconds, training=training, rest=self._before).items():
            self._add(TRAINER, state, self._ranks * part)
        self._trainer_since, self._before = now, TimeState.WAITING
        for trained in [other for other in self._sealed if other <= step]:
            self._book(self._sealed.pop(trained), training)
        self._reached = max(self._reached, step)

    def restarted(self) -> None:
        """All ranks start again in place. Idempotent until the next step: what is beyond their memory is redone."""
        self._before, self._redone_to = TimeState.RESTARTING, self._reached

    def close(self, now: float) -> None:
        """The attempt ends, and its pods with it: what is undecided was for nothing."""
        self._advance_all(now)
        self._add(TRAINER, self._before, self._ranks * max(0.0, now - self._trainer_since))
        self._trainer_since, self._closed = now, True
        for request in list(self._requests):
            self.answered(now, request, lost=False)
        for cost in (*self._costs.values(), *self._sealed.values()):
            self._book(cost, TimeState.UNUSED)
        self._costs.clear()
        self._sealed.clear()
        self.not_kept(self._kept.tokens)
        for name in list(self._engines):
            self.engine_gone(now, name)

    def seconds(self, now: float) -> Seconds:
        """GPU-seconds up to now by role and state, what is undecided included."""
        self._advance_all(now)
        told = {role: dict(states) for role, states in self._seconds.items()}
        sealed = sum(cost.seconds for cost in self._sealed.values())
        told[TRAINER][TimeState.UNDECIDED] = self._ranks * max(0.0, now - self._trainer_since)
        told[INFERENCE][TimeState.UNDECIDED] = self._undecided().seconds + sealed
        return told

    @property
    def engine_names(self) -> set[str]:
        """Engines that are there."""
        return set(self._engines)

    @property
    def tokens(self) -> dict[TimeState, int]:
        """Sampled tokens by what became of them; those that are undecided are left out."""
        return dict(self._tokens)

    def saved(self, now: float) -> Saved:
        """What a successor goes on from."""
        self._advance_all(now)
        return Saved(
            attempt=self._attempt,
            at=now,
            closed=self._closed,
            ranks=self._ranks,
            engine_gpus=self._gpus * len(self._engines),
            trainer_since=self._trainer_since,
            reached=self._reached,
            redone_to=self._redone_to,
            seconds={role: dict(states) for role, states in self._seconds.items()},
            tokens=dict(self._tokens),
            undecided=self._undecided(),
            sealed={step: Cost(cost.seconds, cost.tokens) for step, cost in self._sealed.items()},
        )

    def _undecided(self) -> Cost:
        whole = Cost(sum(self._share(request) for request in self._requests))
        whole.add(self._kept)
        for cost in self._costs.values():
            whole.add(cost)
        return whole

    def _share(self, request: Request) -> float:
        return self._gpus * (request.engine.share_s - request.from_s)

    def _advance_all(self, now: float) -> None:
        for engine in self._engines.values():
            self._advance(engine, now)

    def _advance(self, engine: _Engine, now: float) -> None:
        passed, engine.since = max(0.0, now - engine.since), max(now, engine.since)
        if not engine.alive:
            return
        if engine.doing is None and engine.requests:
            engine.share_s += passed / engine.requests
        else:
            self._add(INFERENCE, engine.doing or TimeState.WAITING, self._gpus * passed)

    def _book(self, cost: Cost, state: TimeState) -> None:
        self._add(INFERENCE, state, cost.seconds)
        self._tokens[state] += cost.tokens

    def _add(self, role: str, state: TimeState, seconds: float) -> None:
        self._seconds[role][state] += seconds
