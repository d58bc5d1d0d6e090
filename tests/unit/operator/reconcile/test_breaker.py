import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from echorl_operator.kube import errors
from echorl_operator.metrics import Metrics
from echorl_operator.reconcile.breaker import Breaker, suspicious
from echorl_testing.waiting import until

DOWN = errors.Unavailable("apply /x", "no reply")


class Server:
    """What the probe meets."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.probes = 0
        self.told: list[str] = []
        self.opened_after = 0
        """Probes until the breaker opened; while it is open, it goes on to probe."""

    def opened(self) -> None:
        self.told.append("open")
        self.opened_after = self.probes

    async def probe(self) -> None:
        self.probes += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def breaker(server: Server) -> AsyncIterator[Breaker]:
    found = Breaker(
        server.probe,
        on_open=server.opened,
        on_close=lambda: server.told.append("close"),
        metrics=Metrics(),
        interval_s=0.01,
    )
    running = asyncio.ensure_future(found.run())
    yield found
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def test_a_failure_that_a_probe_does_not_confirm_is_the_calls_own(breaker: Breaker, server: Server) -> None:
    assert not await breaker.confirm(DOWN)
    assert not breaker.open
    assert server.told == []


async def test_opens_once_and_closes_when_the_server_answers(breaker: Breaker, server: Server) -> None:
    server.failure = DOWN
    assert await asyncio.gather(*(breaker.confirm(DOWN) for _ in range(5))) == [True] * 5
    assert server.opened_after == 1, "many callers share a probe"
    assert breaker.open
    await until(lambda: server.probes >= 4)
    before = breaker.reachable_since
    server.failure = None
    await until(lambda: not breaker.open)
    assert server.told == ["open", "close"]
    assert breaker.reachable_since > before


@pytest.mark.parametrize("kind", [errors.NotFound, errors.TooManyRequests, errors.Conflict, errors.Gone])
async def test_an_answer_is_an_answer(breaker: Breaker, server: Server, kind: type[errors.ApiError]) -> None:
    server.failure = kind("get /x", "no")
    assert not await breaker.confirm(DOWN)


@pytest.mark.parametrize("kind", [errors.Forbidden, errors.Unauthorized, errors.Unavailable])
async def test_a_server_that_turns_us_away_does_not_serve_us(
    breaker: Breaker, server: Server, kind: type[errors.ApiError]
) -> None:
    server.failure = kind("get /x", "no")
    assert await breaker.confirm(DOWN)


async def test_a_suspicion_from_outside_a_pass_is_looked_into(breaker: Breaker, server: Server) -> None:
    breaker.suspect(errors.Gone("watch /x", "too old"))
    breaker.suspect(KeyError("bug"))
    server.failure = DOWN
    breaker.suspect(DOWN)
    await until(lambda: breaker.open)
    server.failure = None
    await until(lambda: not breaker.open)


async def test_a_bug_in_the_probe_is_not_taken_for_an_outage(breaker: Breaker, server: Server) -> None:
    server.failure = KeyError("bug")
    with pytest.raises(KeyError):
        await breaker.confirm(DOWN)
    assert not breaker.open


def test_what_is_suspicious() -> None:
    kinds = (errors.Unavailable, errors.Unauthorized, errors.Forbidden)
    assert all(suspicious(kind("get /x", "no")) for kind in kinds)
    others = (errors.Conflict, errors.Refused, errors.Invalid, errors.TooManyRequests, errors.NotFound)
    assert not any(suspicious(kind("get /x", "no")) for kind in others)
