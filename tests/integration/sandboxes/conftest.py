"""A provider of real sandboxes."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.contract import Sandboxes
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.cluster.binaries import Binaries
from echorl_testing.cluster.errors import Unavailable
from echorl_testing.sandboxes.daemons import Daemons, DaemonSandboxes


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[ProcessSandboxes]:
    """A provider of its own folder; nothing of it is left after the test."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed, and only root can install it")
    made = ProcessSandboxes(tmp_path / "sandboxes")
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
def daemon_program() -> Path:
    """The program that is process 1 of a pod's sandbox."""
    try:
        return Binaries().path("sandbox-daemon")
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
async def daemons(daemon_program: Path) -> AsyncIterator[Daemons]:
    """Daemons of pods' sandboxes; all are ended after the test."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed, and only root can install it")
    made = Daemons(daemon_program)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def daemon_sandboxes(daemons: Daemons) -> AsyncIterator[DaemonSandboxes]:
    """A provider of sandboxes like pods'."""
    made = DaemonSandboxes(daemons)
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture(params=["sandboxes", "daemon_sandboxes"])
def either(request: pytest.FixtureRequest) -> Sandboxes:
    """A provider of each kind."""
    made: Sandboxes = request.getfixturevalue(request.param)
    return made
