"""Which turns of an episode train, by how its conversations are built and never by what they say.

An agent that drives itself also calls beside its work. Turns that continue one another are a conversation. Not used are

sideCall   a conversation of one turn without tools that begins with another message than every conversation of the
           agent's work, which is one with tools or with several turns: a title, a check of the topic
raced      an answer to a prompt that was asked again, where another answer was continued; where none was, all but the
           last one
undelivered  an answer that was not gone on from and whose asker had hung up before it was sent

What a compaction replaced was used when it was sampled, and so was the summary. Where no conversation has tools or
several turns, nothing tells one from the other, and all are used.
"""

from collections import defaultdict
from collections.abc import Sequence, Set
from enum import StrEnum

from echorl_orchestrator.gateway.history import TurnPlace


class Unused(StrEnum):
    """Why a turn does not train."""

    SIDE_CALL = "sideCall"
    RACED = "raced"
    UNDELIVERED = "undelivered"


def unused_turns(turns: Sequence[TurnPlace]) -> dict[int, Unused]:
    """The turns of a session that do not train, by number. What a used turn continues is used as well.

    Args:
        turns: all of the session, in the order of their numbers.
    """
    continued = {turn.continues for turn in turns}
    lost = [turn.number for turn in turns if not turn.delivered and turn.number not in continued]
    raced = dict.fromkeys(_raced([turn for turn in turns if turn.number not in lost], continued), Unused.RACED)
    side_calls = dict.fromkeys(_side_calls(turns), Unused.SIDE_CALL)
    return {**raced, **side_calls, **dict.fromkeys(lost, Unused.UNDELIVERED)}


def _raced(turns: Sequence[TurnPlace], continued: Set[int | None]) -> list[int]:
    answers: dict[int, list[int]] = defaultdict(list)
    for turn in turns:
        answers[turn.prompt].append(turn.number)
    lost: list[int] = []
    for numbers in answers.values():
        kept = continued & set(numbers) or {numbers[-1]}
        lost += [number for number in numbers if number not in kept]
    return lost


def _side_calls(turns: Sequence[TurnPlace]) -> list[int]:
    root: dict[int, int] = {}
    conversations: dict[int, list[TurnPlace]] = defaultdict(list)
    for turn in turns:
        root[turn.number] = turn.number if turn.continues is None else root[turn.continues]
        conversations[root[turn.number]].append(turn)
    # Answers to one prompt are one step of a conversation, however many there are.
    steps = {number: {turn.prompt for turn in found} for number, found in conversations.items()}
    work = {number for number, found in conversations.items() if len(steps[number]) > 1 or found[0].has_tools}
    openings = {conversations[number][0].opening for number in work}
    return [
        turn.number
        for number, found in conversations.items()
        if work and number not in work and found[0].opening not in openings
        for turn in found
    ]
