"""Every fault scenario by name, and how they are lived through."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from echorl_testing.operator.fault_campaign import Course, Outcome, Scenario, campaign
from echorl_testing.operator.hand_scenarios import HANDS
from echorl_testing.operator.leader_scenarios import LEADERS
from echorl_testing.operator.node_scenarios import NODES
from echorl_testing.operator.outage_scenarios import OUTAGES, STORMS, outages, undisturbed
from echorl_testing.operator.pod_hand_scenarios import POD_HANDS
from echorl_testing.operator.run_life import Field

NAMES = (*LEADERS, *NODES, *OUTAGES, *STORMS, *HANDS, *POD_HANDS)
"""Of all scenarios; those that wait longest come first."""


async def lived_through(
    field: Field,
    names: Collection[str],
    *,
    hold_s: float,
    more: Mapping[str, Scenario] | None = None,
    at_once: int = 24,
    tell: Callable[[Outcome], None] = lambda _: None,
) -> dict[str, Outcome]:
    """Live the named scenarios, and what came of each.

    Args:
        field: where; its control plane has the CRD.
        names: of scenarios.
        hold_s: how long an outage lasts.
        more: to live at the same time.
        at_once: scenarios at a time; more than the machine keeps up with only wait for each other.
        tell: gets each outcome at once.
    """
    started: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    reference: asyncio.Future[dict[str, Any]] = asyncio.ensure_future(_reference(field, started))
    scenarios: dict[str, Scenario] = {**LEADERS, **NODES, **outages(reference), **HANDS, **POD_HANDS}
    chosen = {name: scenarios[name] for name in NAMES if name in names} | dict(more or {})
    outcomes = await campaign(Course(field, hold_s, started), chosen, at_once=at_once, tell=tell)
    await asyncio.gather(reference, return_exceptions=True)
    return outcomes


async def _reference(field: Field, started: "asyncio.Future[float]") -> dict[str, Any]:
    """The end of a life without faults; if it fails, so does all that waits for its start."""
    try:
        return await undisturbed(field, started)
    except BaseException as error:
        if not started.done():
            started.set_exception(error)
        raise
