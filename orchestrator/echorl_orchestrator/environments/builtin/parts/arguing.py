"""Advocates argue for answers of a multiple-choice question, then somebody decides: debate and consultancy.

Each advocate has one answer to argue for, the same in every episode of a task. The one who decides is a member of its
own, ``judge``, or a rule. A rule needs no model that can judge, so a tiny one can be trained: see ``points``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from echorl_orchestrator.environments.builtin.parts.choice_tasks import LETTERS, ChoiceArgs, first_letter
from echorl_orchestrator.environments.builtin.parts.debate_prompts import FULL, SHORT
from echorl_orchestrator.environments.contract import Action, MemberReward, MultiAgent, Slot, Stage
from echorl_orchestrator.environments.prompts import PackText, PromptPack

JUDGE = "judge"


class ArguingArgs(ChoiceArgs):
    """Arguments of both environments; questions have two answers."""

    choices: Literal[2] = 2
    judge: Literal["member", "rule"] = "member"
    """Who decides."""
    rounds: int = Field(default=1, ge=1, le=16)
    """Turns of each advocate."""
    prompts: Literal["full", "short"] = "full"
    """Built-in texts."""
    pack: PackText | None = None
    """Texts of your own instead."""


@dataclass(frozen=True)
class Case:
    """What all episodes of an environment share."""

    args: ArguingArgs
    advocates: Sequence[str]
    sides: Callable[[dict[str, Any]], Mapping[str, str]]
    """Letter that each advocate argues for, of a task."""
    rewards: Callable[[Mapping[str, str], str | None], dict[str, float]]
    """Of each advocate, from the sides and the letter that was decided on."""

    @property
    def members(self) -> list[str]:
        """Advocates, and the judge if there is one."""
        return [*self.advocates, *([JUDGE] if self.args.judge == "member" else [])]

    def schedule(self, *, together: bool) -> list[Slot]:
        """Rounds of arguments, then the verdict; with ``together`` the advocates of a round speak at the same time."""
        speakers = [tuple(self.advocates)] if together else [(name,) for name in self.advocates]
        rounds = range(1, self.args.rounds + 1)
        slots = [
            Slot(f"argument-{number}" if len(speakers) == 1 else f"argument-{number}-{names[0]}", "argument", names)
            for number in rounds
            for names in speakers
        ]
        return [*slots, *([Slot("verdict", "verdict", (JUDGE,))] if self.args.judge == "member" else [])]

    def built(self, *, together: bool) -> MultiAgent:
        """The environment.

        Raises:
            BadInputError: the prompt pack does not fit.
        """
        schedule = self.schedule(together=together)
        text = self.args.pack or (FULL if self.args.prompts == "full" else SHORT)
        pack = PromptPack(text, self.members, schedule)
        return MultiAgent(self.members, schedule, lambda: ArguingEnv(self, pack, schedule))


class ArguingEnv:
    """One argument."""

    def __init__(self, case: Case, pack: PromptPack, schedule: Sequence[Slot]) -> None:
        self._case, self._pack, self._schedule = case, pack, schedule
        self._task: dict[str, Any] = {}
        self._sides: Mapping[str, str] = {}
        self._transcript: list[dict[str, str]] = []
        self._heard: dict[str, int] = {}
        self._turns: dict[str, int] = {}

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Stage:
        """Ask the first to speak."""
        self._task, self._sides = task, self._case.sides(task)
        return self._asked(self._schedule[0])

    def step(self, slot: Slot, actions: Mapping[str, Action]) -> Stage:
        """Note what was said; ask the next."""
        for member in slot.members:
            self._transcript.append({"slot": slot.id, "member": member, "text": actions[member].text})
        place = [one.id for one in self._schedule].index(slot.id) + 1
        return self._asked(self._schedule[place]) if place < len(self._schedule) else Stage()

    def rewards(self) -> dict[str, MemberReward]:
        """By the verdict; 0 for all where there is none."""
        decided = self._ruled() if self._case.args.judge == "rule" else self._judged()
        right = {"right": float(decided == self._task["right"]), "undecided": float(decided is None)}
        found = {
            member: MemberReward(reward, {"won": float(reward > 0), "honest": float(self._honest(member)), **right})
            for member, reward in self._case.rewards(self._sides, decided).items()
        }
        return found if self._case.args.judge == "rule" else {**found, JUDGE: MemberReward(0.0, right)}

    def close(self) -> None:
        """Nothing is held."""

    def _asked(self, slot: Slot) -> Stage:
        return Stage({member: self._told(member, slot) for member in slot.members})

    def _told(self, member: str, slot: Slot) -> list[dict[str, Any]]:
        new = [one for one in self._transcript[self._heard.get(member, 0) :] if one["member"] != member]
        turn = self._turns.get(member, 0)
        self._heard[member], self._turns[member] = len(self._transcript), turn + 1
        known = {
            "question": self._task["question"],
            "options": list(zip(LETTERS, self._task["answers"], strict=False)),
            "own": self._sides.get(member),
            "rounds": self._case.args.rounds,
        }
        # Whoever decides speaks after the last round, and as a part of it.
        current = self._case.args.rounds if member == JUDGE else turn + 1
        spoken = {
            **known,
            "slot": slot.id,
            "transcript": self._transcript,
            "heard": new,
            "turn": turn,
            "round": current,
            "last_round": current == self._case.args.rounds,
        }
        asked = self._pack.turn(member, slot.phase, spoken)
        if turn:
            return [{"role": "user", "content": asked}]
        system, question = self._pack.opening(member, known)
        opened = [] if system is None else [{"role": "system", "content": system}]
        return [*opened, {"role": "user", "content": f"{question}{asked}"}]

    def _judged(self) -> str | None:
        said = [one["text"] for one in self._transcript if one["member"] == JUDGE]
        return self._pack.verdict(said[-1]) if said else None

    def _ruled(self) -> str | None:
        """The letter with most points; None if the best are equal."""
        scores = dict.fromkeys(LETTERS[: self._case.args.choices], 0)
        for one in self._transcript:
            scores[self._sides[one["member"]]] += points(one["text"], self._sides[one["member"]], self._task["answers"])
        best = max(scores.values())
        leading = [letter for letter, score in scores.items() if score == best]
        return leading[0] if len(leading) == 1 else None

    def _honest(self, member: str) -> bool:
        return bool(self._sides[member] == self._task["right"])


def points(said: str, own: str, answers: Sequence[str]) -> int:
    """What a rule gives for one statement: 1 if the first letter in it is the own side's, 1 if it quotes its answer."""
    return int(first_letter(said, len(answers)) == own) + int(answers[LETTERS.index(own)] in said)
