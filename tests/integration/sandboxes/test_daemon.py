"""The daemon of pods' sandboxes, as process 1 of namespaces of this machine."""

from collections.abc import AsyncIterator

import pytest

from echorl_orchestrator.sandboxes.contract import Ended, Sandbox
from echorl_orchestrator.sandboxes.pod.sandbox import PodSandbox
from echorl_testing.sandboxes.daemons import Daemons, client
from echorl_testing.sandboxes.running import ran


@pytest.fixture
async def sandbox(daemons: Daemons) -> AsyncIterator[PodSandbox]:
    made = client(await daemons.start())
    yield made
    await made.close()


async def test_a_command_has_what_the_daemon_gives_and_nothing_of_its_own(sandbox: PodSandbox) -> None:
    assert isinstance(sandbox, Sandbox)
    ended, said = await ran(sandbox, "env | sort")
    assert ended == Ended(0)
    assert said.splitlines() == [
        "HOME=/var/echorl/home",
        "LANG=C.UTF-8",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PWD=/task",
        "TMPDIR=/tmp",
    ]
    assert await ran(sandbox, "pwd; id -u; exit 3", root=True) == (Ended(3), "/task\n1000\n")
