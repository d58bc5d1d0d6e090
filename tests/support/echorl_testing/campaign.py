"""Long campaigns, and the part of each that every run of the tests makes.

A campaign tries each of many cases. ``make campaign`` tries them all; ``make test`` a few, which are drawn anew for
each commit, so that all are met in time. ``ECHORL_SEED`` draws as an earlier run did; every run prints its seed.
"""

import functools
import os
import random
import subprocess
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_BENCHMARKS = ["long context", "mixture", "rehearsal", "step"]

ALL = pytest.mark.campaign
"""Mark of a test that ``make campaign`` alone makes."""
SAMPLED = pytest.mark.sampled
"""Mark of a test that is a campaign's part of ``make test``; ``make campaign`` makes it too."""
_REPOSITORY = Path(__file__).parents[3]


@functools.cache
def seed() -> int:
    """What the samples are drawn by: ``ECHORL_SEED``, or a number of the commit; 0 where there is neither."""
    chosen = os.environ.get("ECHORL_SEED")
    if chosen:
        return int(chosen)
    asked = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return int(asked.stdout.strip() or "0", 16) if asked.returncode == 0 else 0


def chance(campaign: str) -> random.Random:
    """Random numbers of one campaign: the same in every process of a run, others for each commit."""
    return random.Random(zlib.crc32(f"{seed()} {campaign}".encode()))


def drawn(campaign: str, cases: Sequence[T], count: int) -> list[T]:
    """``count`` of the cases in their order, drawn by the seed."""
    chosen = set(chance(campaign).sample(range(len(cases)), min(count, len(cases))))
    return [case for index, case in enumerate(cases) if index in chosen]


def campaign_mark(campaign: str, cases: Sequence[T], count: int, case: T) -> pytest.MarkDecorator:
    """Of the test that is ``case``, where each case of a campaign is a test of its own."""
    return SAMPLED if case in drawn(campaign, cases, count) else ALL


def of_benchmark(name: str) -> pytest.MarkDecorator:
    """Mark of a benchmark at its smallest; every run of the tests makes one of these."""
    return campaign_mark("benchmarks", _BENCHMARKS, 1, name)


def campaign_params(
    campaign: str, cases: Sequence[Any], count: int, ids: Callable[[Any], str] | None = None
) -> list[Any]:
    """All cases as parameters of a test: ``count`` of them marked as sampled, the others for the campaign alone.

    Args:
        campaign: its name; two campaigns draw independently of each other.
        cases: values, tuples of values for several arguments, or ``pytest.param``.
        count: how many cases every run of the tests makes.
        ids: the name of a case.
    """
    chosen = set(chance(campaign).sample(range(len(cases)), min(count, len(cases))))
    marked = []
    for index, case in enumerate(cases):
        mark = SAMPLED if index in chosen else ALL
        if hasattr(case, "marks") and hasattr(case, "values"):
            marked.append(pytest.param(*case.values, marks=[*case.marks, mark], id=case.id))
        else:
            values = case if isinstance(case, tuple) else (case,)
            marked.append(pytest.param(*values, marks=mark, id=ids(case) if ids else None))
    return marked
