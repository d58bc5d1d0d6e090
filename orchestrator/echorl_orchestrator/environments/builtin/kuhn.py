"""``builtin:kuhn``: Kuhn's poker for two (H. W. Kuhn, "A simplified two-person poker", 1950), zero-sum.

Three cards, J < Q < K, one each, one chip each in the pot. The first player checks or bets one chip. After a bet the
other calls or folds; after a check it checks too (the higher card takes the pot) or bets, and then the first player
calls or folds. Best play of both is worth -1/18 to the first.

The first letter of a turn that is a move counts, whatever stands around it, so an untrained model plays by chance. A
turn without one loses the game there and then, at the price of a fold, at least one chip.
"""

import random
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.contract import (
    LEARNER_SEAT,
    Action,
    Environment,
    MemberReward,
    MultiAgent,
    Slot,
    Stage,
)

KIND = "multi_agent"

MEMBERS = ("first", "second")
CARDS = "JQK"
SCHEDULE = (
    Slot("opening", "open", ("first",)),
    Slot("answer", "answer", ("second",)),
    Slot("last", "answer", ("first",)),
)
_DEALS = [(own, other) for own in CARDS for other in CARDS if own != other]


class KuhnArgs(BaseModel):
    """Arguments of ``builtin:kuhn``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    num_tasks: int = Field(default=60, ge=1)
    seed: int = 0
    learner_seat: Literal["first", "second", "alternate"] = "alternate"
    """``learnerSeat`` of the tasks: what evals report, and who learns beside a frozen seat."""
    bet: str = Field(default="b", min_length=1, max_length=1)
    """Letter of a move: bet, or call a bet."""
    check: str = Field(default="p", min_length=1, max_length=1)
    """Letter of the other move: check, or fold to a bet."""
    rules: bool = False
    """Whether a system message tells the rules; short prompts suit models of a few bytes better."""


class KuhnTasks:
    """Deals: all six in a seeded order, again and again. A task is a deal, so baselines are by deal and member."""

    def __init__(self, args: KuhnArgs) -> None:
        self._args = args

    def __len__(self) -> int:
        """How many there are."""
        return self._args.num_tasks

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Deal ``index``."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        deals = list(_DEALS)
        random.Random(f"kuhn:{self._args.seed}:{index // len(deals)}").shuffle(deals)
        first, second = deals[index % len(deals)]
        seat = MEMBERS[index % 2] if self._args.learner_seat == "alternate" else self._args.learner_seat
        return {"key": f"{first}{second}", "first": first, "second": second, LEARNER_SEAT: seat}


class KuhnEnv:
    """One game."""

    def __init__(self, args: KuhnArgs) -> None:
        self._args = args
        self._cards: dict[str, str] = {}
        self._moves = ""
        self._gain = 0.0
        """Of the first player."""
        self._invalid: str | None = None

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Stage:
        """Deal."""
        self._cards = {member: task[member] for member in MEMBERS}
        return Stage({"first": self._told("first", "")})

    def step(self, slot: Slot, actions: Mapping[str, Action]) -> Stage:
        """Take one move."""
        (member, action) = next(iter(actions.items()))
        moves = (self._args.bet, self._args.check)
        move = next((letter for letter in action.text if letter in moves), None)
        if move is None:
            self._invalid = member
            self._gain = -1.0 if member == "first" else 1.0
            return Stage(terminated=True)
        self._moves += "b" if move == self._args.bet else "p"
        if (gain := gain_of(self._moves, self._cards["first"], self._cards["second"])) is not None:
            self._gain = gain
            return Stage(terminated=True)
        other = MEMBERS[1 - MEMBERS.index(member)]
        return Stage({other: self._told(other, move)})

    def rewards(self) -> dict[str, MemberReward]:
        """What each won; the other lost it."""
        gains = {"first": self._gain, "second": -self._gain}
        return {member: MemberReward(gains[member], self._metrics(member, gains[member])) for member in MEMBERS}

    def close(self) -> None:
        """Nothing is held."""

    def _metrics(self, member: str, gain: float) -> dict[str, float]:
        return {"won": float(gain > 0), "invalid": float(self._invalid == member)}

    def _told(self, member: str, heard: str) -> list[dict[str, Any]]:
        """What a member hears before its move: with its first one its card, and the rules if they are wanted."""
        if member == "first" and self._moves:
            return [{"role": "user", "content": heard}]
        rules = [{"role": "system", "content": rules_of(self._args)}] if self._args.rules else []
        return [*rules, {"role": "user", "content": f"{self._cards[member]} {heard}".strip()}]


def rules_of(args: KuhnArgs) -> str:
    """The game in words, for models that read."""
    return (
        "You play Kuhn poker for two with the cards J < Q < K. Each player has one card, unknown to the other, and has "
        "put one chip into the pot. The first player checks or bets one chip. A bet is answered by a call (one chip "
        "more, then the higher card takes the pot) or a fold (the other takes it). After a check the second player may "
        "check too (the higher card takes the pot) or bet. You are told your card, then what the other did. "
        f"Answer with one letter: {args.bet} to bet or call, {args.check} to check or fold."
    )


def gain_of(moves: str, first: str, second: str) -> float | None:
    """What the first player won by these moves (``b`` and ``p``); None while the game goes on."""
    higher = 1.0 if CARDS.index(first) > CARDS.index(second) else -1.0
    gains = {"pp": higher, "bp": 1.0, "bb": 2 * higher, "pbp": -1.0, "pbb": 2 * higher}
    return gains.get(moves)


def build(**args: Any) -> Environment:
    """The environment that ``builtin:kuhn`` names."""
    checked = KuhnArgs.model_validate(args)
    if checked.bet == checked.check:
        raise ValueError(f"bet and check: found {checked.bet!r} for both, accepted are two letters")
    return Environment(KuhnTasks(checked), multi_agent=MultiAgent(MEMBERS, SCHEDULE, lambda: KuhnEnv(checked)))
