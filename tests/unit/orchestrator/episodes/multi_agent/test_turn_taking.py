"""The turns of a slot are taken together or not at all, whatever happens in which order."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_orchestrator.environments.contract import MultiAgent, Slot, problems
from echorl_orchestrator.episodes.multi_agent.turn_taking import TurnTaking
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.orchestrator.scripted_player import eventually

SLOTS = (Slot("one", "talk", ("a", "b")), Slot("two", "talk", ("b",)), Slot("three", "talk", ("a", "b", "c")))


class Talk:
    """Members that note what was taken of them."""

    def __init__(self, schedule: tuple[Slot, ...] = SLOTS) -> None:
        self.turn_taking = TurnTaking(schedule)
        self.taken: list[tuple[str, str]] = []
        self.sampled: list[str] = []

    async def speak(self, member: str, before: Callable[[], Awaitable[None]] | None = None) -> str:
        async def turn() -> str:
            if before is not None:
                await before()
            self.sampled.append(member)
            slot = self.turn_taking.slot
            assert slot is not None
            name = slot.id

            def take() -> str:
                self.taken.append((name, member))
                return f"{member} in {name}"

            return await self.turn_taking.settle(member, take)

        return await self.turn_taking.speak(member, turn())


async def test_a_slot_is_taken_in_the_schedules_order_when_its_last_member_has_spoken() -> None:
    talk, gate = Talk(), asyncio.Event()

    async def late() -> None:
        await gate.wait()

    first = asyncio.create_task(talk.speak("a", late))
    second = asyncio.create_task(talk.speak("b"))
    await eventually(lambda: talk.sampled, "b has spoken")
    assert talk.taken == []
    gate.set()
    assert await asyncio.gather(first, second) == ["a in one", "b in one"]
    assert talk.taken == [("one", "a"), ("one", "b")]
    assert await talk.speak("b") == "b in two"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (["b", "b"], "b spoke twice in slot 'one'"),
        (["c"], "c spoke out of turn: slot 'one' is for a, b"),
        (["a+b", "a"], "a spoke late: slot 'two' is for b"),
        (["a+b", "b", "a+b+c", "a"], "a spoke late: the episode is over"),
    ],
)
async def test_wrong_duplicate_and_late_turns_end_the_episode(said: list[str], message: str) -> None:
    talk, waiting = Talk(), []
    *before, wrong = said
    for slot in before:
        tasks = [asyncio.create_task(talk.speak(member)) for member in slot.split("+")]
        if len(tasks) > 1 or (talk.turn_taking.slot or SLOTS[0]).id == "two":
            await asyncio.gather(*tasks)
        else:
            waiting += tasks
            await asyncio.sleep(0)
    taken = list(talk.taken)
    with pytest.raises(EpisodeError, match=message) as caught:
        await talk.speak(wrong)
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert talk.turn_taking.failure is caught.value
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, EpisodeError)
        assert result.kind is ErrorKind.CANCELLED
    assert talk.taken == taken
    with pytest.raises(EpisodeError, match="the episode is over"):
        await talk.speak("b")


def turn_before(waits: int, *, fails: str | None) -> Callable[[], Awaitable[None]]:
    """What a member does before its turn is sampled: it waits for turns of the loop, and may fail before or after."""

    async def wait() -> None:
        if fails == "before":
            raise EpisodeError(ErrorKind.PROVIDER, "gone")
        for _ in range(waits):
            await asyncio.sleep(0)
        if fails == "after":
            raise EpisodeError(ErrorKind.PROVIDER, "gone")

    return wait


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    failing=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    how=st.sampled_from(["before", "after", "cancelled", "never"]),
    waits=st.lists(st.integers(0, 3), min_size=16, max_size=16),
)
def test_all_or_none(sizes: list[int], failing: tuple[int, int], how: str, waits: list[int]) -> None:
    """Members take 0 to 3 turns of the loop; one of them fails, is cancelled, or none does."""
    schedule = tuple(Slot(str(place), "talk", tuple("abcd"[:size])) for place, size in enumerate(sizes))

    async def speaking(talk: Talk, slot: Slot) -> list[object]:
        place = int(slot.id)
        doomed = {failing[1]: how} if failing[0] == place else {}
        tasks = [
            asyncio.create_task(talk.speak(name, turn_before(waits[4 * place + number], fails=doomed.get(number))))
            for number, name in enumerate(slot.members)
        ]
        for number in doomed if how == "cancelled" else ():
            for _ in range(1 + waits[number]):
                await asyncio.sleep(0)
            for task in tasks[number : number + 1]:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def play() -> None:
        talk = Talk(schedule)
        for slot in schedule:
            results = await asyncio.wait_for(speaking(talk, slot), 10)
            taken = [member for name, member in talk.taken if name == slot.id]
            assert taken in ([], list(slot.members))
            assert taken or (talk.turn_taking.failure is not None and talk.turn_taking.slot is slot)
            assert taken or all(isinstance(result, BaseException) for result in results)
            if talk.turn_taking.failure is not None:
                assert how != "never"
                return
        assert talk.turn_taking.slot is None

    asyncio.run(play())


@pytest.mark.parametrize(
    ("members", "slots", "message"),
    [
        ([], [], "members: found none"),
        (["a", ""], [("s", ["a"])], "members: found ''"),
        (["a", "b c"], [("s", ["a"])], "members: found 'b c'"),
        (["a", "a"], [("s", ["a"])], "'a' is there twice"),
        (["mean"], [("s", ["mean"])], "'mean' is the name of a statistic"),
        (["a"], [], "schedule: found no slot"),
        (["a"], [("s", [])], "slot 's' has no members"),
        (["a"], [("s", ["a"]), ("s", ["a"])], "the slot 's' is there twice"),
        (["a"], [("s", ["a", "a"])], "slot 's' has 'a' twice"),
        (["a"], [("s", ["z"])], "found 'z', accepted are a"),
    ],
)
def test_what_is_wrong_with_members_and_schedule_is_said(
    members: list[str], slots: list[tuple[str, list[str]]], message: str
) -> None:
    found = MultiAgent(members, [Slot(name, "talk", who) for name, who in slots], None)
    assert any(message in problem for problem in problems(found))
    assert not list(problems(MultiAgent(["a", "b"], SLOTS[:2], None)))
