"""A port that is not free: a mistake at a run's first start, and bad luck after a restart."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from echorl_core.names import ExitCode
from echorl_orchestrator.control.listening import listening
from echorl_orchestrator.failures import BadInputError, RunFailure


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder


async def test_a_taken_port_is_a_mistake_at_the_first_start_and_may_be_restarted_later(taken: socket.socket) -> None:
    port = taken.getsockname()[1]
    with pytest.raises(BadInputError, match=f"port {port} on 127.0.0.1 is taken by another process; accepted is"):
        await listening("127.0.0.1", port, restarted=False)
    with pytest.raises(RunFailure, match="is taken by another process, for 0 s after a restart") as caught:
        await listening("127.0.0.1", port, restarted=True, patience_s=0.0)
    assert caught.value.code is ExitCode.CRASH


async def test_a_restarted_role_gets_its_port_as_soon_as_it_is_free(taken: socket.socket) -> None:
    host, port = taken.getsockname()
    asking = asyncio.create_task(listening(host, port, restarted=True, patience_s=60.0))
    await asyncio.sleep(0)
    assert not asking.done()
    taken.close()
    with await asking as found:
        assert found.getsockname() == (host, port)


async def test_an_address_of_no_machine_is_a_mistake() -> None:
    with pytest.raises(BadInputError, match="cannot be used"):
        await listening("no-such-host.invalid", 1, restarted=False)
