"""Namespaces of a cluster, without one in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing.cluster import sandbox
from echorl_testing.cluster.errors import Unavailable
from echorl_testing.cluster.processes import wait_for
from echorl_testing.cluster.sandbox import Sandbox

ORPHANS = "for i in 1 2 3; do (sleep 1 >/dev/null 2>&1 &) ; done"


@pytest.fixture
def made() -> Iterator[Sandbox]:
    try:
        found = sandbox.create("echorl-orphans", tethered=True)
    except Unavailable as error:
        pytest.skip(str(error))
    yield found
    found.end()


def children(parent: int) -> list[str]:
    """Ids of a process's children, the dead ones too."""
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


def test_orphans_that_end_are_reaped(made: Sandbox) -> None:
    for holder in (made, made.nested()):
        holder.run("sh", "-c", ORPHANS)
        assert children(holder.init.pid), "they are its children now"
        wait_for("no orphan is left", lambda holder=holder: not children(holder.init.pid), seconds=30)
