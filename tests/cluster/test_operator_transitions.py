"""A hundred random spec changes of living runs; ``benchmarks.spec_transitions`` makes more."""

from pathlib import Path

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.run_life import Field
from echorl_testing.run_objects import install_crd
from echorl_testing.transitions import transitions

pytestmark = pytest.mark.timeout(3600)

COUNT = 100


async def test_every_change_converges_or_is_refused(api: Api, connection: Connection, tmp_path: Path) -> None:
    install_crd(api)
    async with Field(api, connection, tmp_path) as field:
        tally = await transitions(field, COUNT, seed=1, at_once=8)
    assert not tally.problems, f"{len(tally.problems)} lives:\n" + "\n\n".join(tally.problems)
    assert tally.count == COUNT
    for outcome in ("a new attempt", "applied live", "refused by the API server"):
        assert tally.outcomes[outcome] >= 5, tally.outcomes
