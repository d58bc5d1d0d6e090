"""The operator dies at its k-th write, for every k of a run's life; a successor brings the run to the same end."""

import asyncio
import os
from pathlib import Path

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.killed_lives import compared, lived
from echorl_testing.run_life import Field
from echorl_testing.run_objects import install_crd

pytestmark = pytest.mark.timeout(3600)

AT_ONCE = 8
EVERY = int(os.environ.get("ECHORL_KILL_EVERY", "1"))
"""Every n-th write alone, for a quick look."""


async def test_killed_at_every_write(api: Api, connection: Connection, tmp_path: Path) -> None:
    install_crd(api)
    async with Field(api, connection, tmp_path) as field:
        # How many writes a life takes depends on how busy the machine is: let it be as busy as it will be.
        references = await asyncio.gather(*(lived(field) for _ in range(AT_ONCE)))
        assert {one.end["phase"] for one in references} == {"Succeeded"}
        assert [one.admitted for one in references] == [[1, 1, 2, 2]] * AT_ONCE
        undisturbed, fewest = max(references, key=lambda one: one.writes), min(one.writes for one in references)
        turn = asyncio.Semaphore(AT_ONCE)
        struck: list[bool] = []

        async def disturbed(kill_at: int) -> list[str]:
            async with turn:
                try:
                    life = await lived(field, kill_at)
                except AssertionError as error:
                    return [f"killed at write {kill_at}: {error}"]
            struck.append(life.struck)
            return [f"killed at write {kill_at}: {problem}" for problem in compared(life, undisturbed)]

        numbers = range(1, undisturbed.writes + 1, EVERY)
        found = await asyncio.gather(*(disturbed(number) for number in numbers))
    problems = [problem for of_life in found for problem in of_life]
    assert not problems, f"{len(problems)} problems of {len(numbers)} lives:\n" + "\n".join(problems)
    due = len(range(1, fewest + 1, EVERY))
    assert sum(struck) >= 0.9 * due, f"only {sum(struck)} of {due} operators were killed"
