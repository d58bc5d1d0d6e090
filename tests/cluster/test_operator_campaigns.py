"""Campaigns on living runs: faults of the API server, nodes, operators and people; kills at writes; changes of specs.

A run comes through each as if there had been none. What ``make test`` makes of them is lived at the same time, each run
in a namespace of its own: most of it is waiting. docs/faults.md has what the scenarios are.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.campaign import campaign_params
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.all_scenarios import lived_through
from echorl_testing.operator.fault_campaign import Course, Outcome
from echorl_testing.operator.hand_scenarios import HANDS
from echorl_testing.operator.killed_lives import killed_at
from echorl_testing.operator.leader_scenarios import LEADERS
from echorl_testing.operator.node_scenarios import NODES
from echorl_testing.operator.outage_scenarios import OUTAGES, STORMS
from echorl_testing.operator.pod_hand_scenarios import POD_HANDS
from echorl_testing.operator.run_life import Field
from echorl_testing.operator.transitions import Tally, transitions

pytestmark = pytest.mark.timeout(3600)

HOLD_S = float(os.environ.get("ECHORL_OUTAGE_SECONDS", "8"))
AT_ONCE = 8
CHANGES, FEW_CHANGES = 100, 12
FEW_KILLS = 3


async def killed_at_a_few_writes(course: Course) -> str:
    def few(writes: int) -> list[int]:
        return campaign.drawn("kills", range(1, writes + 1), FEW_KILLS)

    return await killed_at(course.field, few, references=FEW_KILLS, at_once=AT_ONCE)


async def a_few_changes(course: Course) -> str:
    tally = await transitions(course.field, FEW_CHANGES, seed=campaign.seed(), at_once=AT_ONCE, a_life=6)
    all_well(tally, FEW_CHANGES)
    return str(tally.outcomes)


SAMPLES = {"the operator is killed at a few writes": killed_at_a_few_writes, "a few changes of specs": a_few_changes}
CASES = [
    *campaign_params("faults of leaders", tuple(LEADERS), 1),
    *campaign_params("faults of nodes", tuple(NODES), 1),
    *campaign_params("faults of the API server", (*OUTAGES, *STORMS), 2),
    *campaign_params("people", (*HANDS, *POD_HANDS), 1),
    *(pytest.param(name, marks=campaign.SAMPLED) for name in SAMPLES),
]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, api: Api, connection: Connection, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Outcome]:
    """Of the scenarios whose tests were chosen: the samples first, all at once, and then the rest."""
    install_crd(api)
    chosen: dict[bool, set[str]] = {True: set(), False: set()}
    for item in request.session.items:
        if item.path == request.path and hasattr(item, "callspec"):
            chosen[item.get_closest_marker("sampled") is not None].add(item.callspec.params["name"])
    folder: Path = tmp_path_factory.mktemp("lives")

    async def lives() -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        async with Field(api, connection, folder) as field:
            for names in filter(None, chosen.values()):
                more = {name: SAMPLES[name] for name in names & SAMPLES.keys()}
                found |= await lived_through(field, names, hold_s=HOLD_S, more=more)
        return found

    return asyncio.run(lives())


@pytest.mark.parametrize("name", CASES)
def test_fault(outcomes: dict[str, Outcome], name: str, record_property: Callable[[str, object], None]) -> None:
    outcome = outcomes[name]
    record_property("measured", f"{outcome.seconds:.0f} s: {outcome.measured}")
    assert not outcome.problem, outcome.problem


@campaign.ALL
async def test_killed_at_every_write(api: Api, connection: Connection, tmp_path: Path) -> None:
    install_crd(api)
    async with Field(api, connection, tmp_path) as field:
        await killed_at(field, lambda writes: range(1, writes + 1), references=AT_ONCE, at_once=AT_ONCE)


@campaign.ALL
async def test_every_change_converges_or_is_refused(api: Api, connection: Connection, tmp_path: Path) -> None:
    install_crd(api)
    async with Field(api, connection, tmp_path) as field:
        tally = await transitions(field, CHANGES, seed=1, at_once=AT_ONCE)
    all_well(tally, CHANGES)
    for outcome in ("a new attempt", "applied live", "refused by the API server"):
        assert tally.outcomes[outcome] >= 5, tally.outcomes


def all_well(tally: Tally, count: int) -> None:
    assert not tally.problems, f"{len(tally.problems)} lives:\n" + "\n\n".join(tally.problems)
    assert tally.count == count
