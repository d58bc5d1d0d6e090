"""A multi-agent environment for tests: members tell each other what they said, and rewards are as its arguments say."""

import time
from collections.abc import Mapping
from typing import Any

from echorl_orchestrator.environments.contract import MemberReward, MultiAgent, Slot, Stage
from echorl_orchestrator.types import Action, Environment


class Circle:
    """Every member hears what the others said in the slot before, and is asked in the slots that it has."""

    def __init__(self, members: list[str], schedule: list[Slot], does: str, rewards: Mapping[str, float]) -> None:
        self._members, self._schedule, self._does, self._rewards = members, schedule, does, rewards
        self._said = dict.fromkeys(members, "")
        self._steps = 0

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Stage:
        return self._asked(self._schedule[0], task["key"])

    def step(self, slot: Slot, actions: Mapping[str, Action]) -> Stage:
        assert list(actions) == list(slot.members)
        self._steps += 1
        if self._does == "raises":
            raise RuntimeError("on purpose")
        if self._does == "hangs":
            time.sleep(60)
        self._said.update({member: action.text for member, action in actions.items()})
        if self._does == "ends" or self._steps == len(self._schedule):
            return Stage(terminated=self._does == "ends", info={"said": dict(self._said)})
        if self._does == "silent":
            return Stage()
        return self._asked(self._schedule[self._steps], "")

    def rewards(self) -> dict[str, MemberReward]:
        if self._does == "grader fails":
            raise RuntimeError("no grade")
        return {
            name: MemberReward(self._rewards.get(name, 0.0), {"steps": float(self._steps)}) for name in self._scored()
        }

    def close(self) -> None: ...

    def _scored(self) -> list[str]:
        return self._members[1:] if self._does == "forgets the first" else self._members

    def _asked(self, slot: Slot, key: Any) -> Stage:
        return Stage({member: [{"role": "user", "content": self._heard(member, slot, key)}] for member in slot.members})

    def _heard(self, member: str, slot: Slot, key: Any) -> str:
        others = "".join(f"[{name}:{said}]" for name, said in self._said.items() if name != member and said)
        return f"{member}/{slot.id}/{key} {others}"


def circle(
    members: tuple[str, ...] | list[str] = ("a", "b"),
    schedule: list[list[Any]] | None = None,
    does: str = "",
    rewards: Mapping[str, float] | None = None,
    learner_seats: list[str | None] | None = None,
    tasks: int = 4,
) -> Environment:
    """A talk.

    Args:
        members: who takes part.
        schedule: ``[id, members]`` of each slot; by default one slot for all together, then one for each alone.
        does: how the environment misbehaves.
        rewards: by member.
        learner_seats: of the tasks, by turns; None: that task names none.
        tasks: how many.
    """
    chosen = schedule or [["all", list(members)], *([f"then-{name}", [name]] for name in members)]
    slots = [Slot(str(name), "talk", tuple(speakers)) for name, speakers in chosen]
    seats = [{} if seat is None else {"learnerSeat": seat} for seat in learner_seats or [None]]
    names = list(members)
    return Environment(
        [{"key": key, **seats[key % len(seats)]} for key in range(tasks)],
        multi_agent=MultiAgent(names, slots, lambda: Circle(names, slots, does, rewards or {"a": 1.0, "b": -1.0})),
    )
