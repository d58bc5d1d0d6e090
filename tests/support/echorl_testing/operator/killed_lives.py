"""Lives of a run whose operator dies at one of its writes; another one takes over."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from echorl_testing.kube import faults
from echorl_testing.kube.faults import Fault
from echorl_testing.operator.run_life import Field, Life, ended


@dataclass(frozen=True)
class Lived:
    """How one life went."""

    end: dict[str, Any]
    """Children that are left and what status says."""
    writes: int
    """Of all its operators."""
    admitted: list[int]
    """Attempts of trainer pods, in the order in which they were let through."""
    problems: list[str]
    """What its history shows that must never be."""
    struck: bool
    """Whether an operator was killed: a life may have fewer writes than the one that was counted."""


async def lived(field: Field, *kill_at: int) -> Lived:
    """A run that loses a rank once and then finishes.

    Args:
        field: where.
        kill_at: the first operator dies at its first of these writes, its successor at its own second of these, ...
            The write happens; who made it learns nothing, and nothing of what it knew is left.
    """
    async with field.life() as life:
        deaths = [faults.hang(faults.writes, after=True, nth=number) for number in kill_at]
        minding = asyncio.create_task(_mind(life, deaths), name=f"operators of {life.namespace}")
        try:
            await _live(life)
            if minding.done():
                await minding
        finally:
            await ended(minding)
        return Lived(life.end(), life.writes(), life.admitted(), life.problems(), all(one.hits for one in deaths))


async def _live(life: Life) -> None:
    await life.create()
    await life.running(1)
    await life.lose_a_rank(1)
    await life.running(2)
    await life.finish()


async def _mind(life: Life, deaths: list[Fault]) -> None:
    """An operator; after it was killed, another one."""
    for death in deaths:
        with life.proxy.fault(death):
            async with life.operated():
                await death.struck.wait()
    async with life.operated():
        await asyncio.Event().wait()


MORE_WRITES = 12
"""That a successor may need: what its predecessor wrote without learning of it, and what it says of itself."""


def compared(life: Lived, undisturbed: Lived) -> list[str]:
    """How a life differs from one whose operator was not killed; empty if it does not."""
    found = list(life.problems)
    for key, value in undisturbed.end.items():
        if life.end[key] != value:
            found.append(f"{key}: {life.end[key]}, undisturbed {value}")
    if life.admitted != undisturbed.admitted:
        found.append(f"attempts let through: {life.admitted}, undisturbed {undisturbed.admitted}")
    if life.writes > undisturbed.writes + MORE_WRITES:
        found.append(f"{life.writes} writes, undisturbed {undisturbed.writes}")
    return found


async def killed_at(field: Field, chosen: Callable[[int], Sequence[int]], *, references: int, at_once: int) -> str:
    """Live once for each of some writes, at which the operator dies; how many lives that were.

    Args:
        field: where.
        chosen: the writes, of so many that a life has.
        references: lives without a kill at the same time. How many writes a life takes depends on how busy the machine
            is: let it be as busy as it will be.
        at_once: lives at a time.

    Raises:
        AssertionError: a life came to another end, or too few operators were killed; names all.
    """
    undisturbed = await asyncio.gather(*(lived(field) for _ in range(references)))
    assert {one.end["phase"] for one in undisturbed} == {"Succeeded"}
    assert [one.admitted for one in undisturbed] == [[1, 1, 2, 2]] * references
    longest, fewest = max(undisturbed, key=lambda one: one.writes), min(one.writes for one in undisturbed)
    turn = asyncio.Semaphore(at_once)
    struck: list[bool] = []

    async def disturbed(kill_at: int) -> list[str]:
        async with turn:
            try:
                life = await lived(field, kill_at)
            except AssertionError as error:
                return [f"killed at write {kill_at}: {error}"]
        struck.append(life.struck)
        return [f"killed at write {kill_at}: {problem}" for problem in compared(life, longest)]

    numbers = chosen(longest.writes)
    found = await asyncio.gather(*(disturbed(number) for number in numbers))
    problems = [problem for of_life in found for problem in of_life]
    assert not problems, f"{len(problems)} problems of {len(numbers)} lives:\n" + "\n".join(problems)
    due = sum(number <= fewest for number in numbers)
    assert sum(struck) >= due - max(1, due // 10), f"only {sum(struck)} of {due} operators were killed"
    return f"{sum(struck)} operators killed, at some of the writes {[*numbers]}"
