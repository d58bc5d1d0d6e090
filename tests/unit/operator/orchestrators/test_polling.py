import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from echorl_core.names import Phase
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.orchestrators.polling import Orchestrators, PollSettings, Target
from echorl_operator.orchestrators.tokens import Tokens
from echorl_testing.ports import free_port
from echorl_testing.waiting import until

KEY = RunKey("ns", "r")
TOKENS = Tokens(b"k" * 32)
FAST = PollSettings(wait_s=0.3, reply_s=3.0, pace_s=0.01, stale_s=4.0, first_retry_s=0.01, longest_retry_s=0.05)


class Peer:
    """An orchestrator at the wire."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "run": "r",
            "uid": "uid",
            "attempt": 2,
            "revision": 100,
            "phase": "Starting",
            "step": 0,
            "waiting_for": "engines",
            "policy": {"trained": 0, "served": None, "staleness_max": None},
            "checkpoint": {"step": None, "committed": [], "size_bytes": None, "committed_at": None, "abandoned": ""},
            "reward": None,
            "engines": [],
            "failure": None,
            "rates": {"sampled_tokens_per_s": 1.0},
        }
        self.changed = asyncio.Condition()
        self.asked: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.stops = 0
        self.redirects_stops_to = ""
        self.open = 0
        self.most_open = 0
        self.answer: web.Response | None = None
        self.address = f"127.0.0.1:{free_port()}"
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "Peer":
        app = web.Application()
        app.router.add_get("/state", self._state)
        app.router.add_post("/control/stop", self._stop)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", int(self.address.split(":")[1])).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def change(self, **fields: Any) -> None:
        async with self.changed:
            self.state |= {**fields, "revision": self.state["revision"] + 1}
            self.changed.notify_all()

    async def _state(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        self.headers.append(dict(request.headers))
        if self.answer is not None:
            headers = {name: text for name, text in self.answer.headers.items() if name == "Location"}
            return web.Response(status=self.answer.status, body=self.answer.body, headers=headers)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async with asyncio.timeout(float(request.query.get("wait", "0"))), self.changed:
                await self.changed.wait_for(lambda: str(self.state["revision"]) != request.query.get("since"))
        except TimeoutError:
            pass
        finally:
            self.open -= 1
        return web.json_response(self.state)

    async def _stop(self, request: web.Request) -> web.Response:
        if self.redirects_stops_to:
            return web.Response(status=307, headers={"Location": self.redirects_stops_to})
        ok = request.headers.get("X-EchoRL-Token") == TOKENS.token("uid")
        self.stops += ok
        return web.json_response({}, status=200 if ok else 403)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    async with Peer() as found:
        yield found


@pytest.fixture
def changes() -> list[RunKey]:
    return []


@pytest.fixture
async def orchestrators(changes: list[RunKey]) -> AsyncIterator[Orchestrators]:
    async with Orchestrators(TOKENS, on_change=changes.append, metrics=Metrics(), settings=FAST) as found:
        running = asyncio.ensure_future(found.run())
        await asyncio.sleep(0)
        yield found
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _target(peer: Peer, attempt: int = 2, uid: str = "uid") -> Target:
    return Target(KEY, uid, attempt, peer.address)


async def test_follows_by_long_poll(orchestrators: Orchestrators, peer: Peer, changes: list[RunKey]) -> None:
    assert orchestrators.state(KEY) is None
    orchestrators.follow(_target(peer))
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    state = orchestrators.state(KEY)
    assert state is not None
    assert (state.attempt, state.phase, state.step, state.waiting_for) == (2, Phase.STARTING, 0, "engines")
    assert changes == [KEY]
    await until(lambda: len(peer.asked) >= 3)
    assert peer.asked[:3] == [{}, *[{"since": "100", "wait": "0.3"}] * 2]
    assert changes == [KEY], "nothing changed"
    assert peer.most_open == 1
    sent = peer.headers[0]
    assert (sent["X-EchoRL-Run"], sent["X-EchoRL-Attempt"]) == ("uid", "2")
    assert sent["X-EchoRL-Token"] == TOKENS.token("uid")


async def test_a_change_is_told_and_decoded(orchestrators: Orchestrators, peer: Peer, changes: list[RunKey]) -> None:
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    before = orchestrators.state(KEY)
    await peer.change(
        phase="Running",
        step=7,
        policy={"trained": 7, "served": {"min": 6, "max": 7}, "staleness_max": 1.0},
        checkpoint={"step": 6, "size_bytes": 10, "committed_at": "now", "abandoned": "disk full", "abandoned_step": 7},
        volume_full="no room",
        engines=[{"name": "e:1", "state": "serving", "version": 7, "boot_id": "b", "running": 3, "error": ""}],
        failure={"exit_code": 3, "message": "loss is nan"},
        reward=0.5,
        live_generation=4,
    )
    await until(lambda: len(changes) == 2)
    state = orchestrators.state(KEY)
    assert state is not None
    assert before is not None
    assert (state.phase, state.step, state.trained, state.served_min, state.served_max) == (Phase.RUNNING, 7, 7, 6, 7)
    assert state.checkpoint is not None
    assert (state.checkpoint.step, state.abandoned, state.reward, state.staleness_max) == (6, "disk full", 0.5, 1)
    assert (state.abandoned_step, state.volume_full) == (7, "no room")
    assert (state.failure_code, state.failure_message) == (3, "loss is nan")
    assert state.engines[0].state == "serving"
    assert state.live_generation == 4
    assert state.last_step_at > before.last_step_at
    await peer.change(reward=0.6)
    await until(lambda: len(changes) == 3)
    later = orchestrators.state(KEY)
    assert later is not None
    assert later.last_step_at == state.last_step_at, "the step did not move"


async def test_the_clock_of_a_stall_is_the_orchestrators(
    orchestrators: Orchestrators, peer: Peer, changes: list[RunKey]
) -> None:
    """A process of the operator that begins to look in the middle of a stall knows since when."""
    peer.state["unmoved_s"] = 1200.0
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    first = orchestrators.state(KEY)
    assert first is not None
    assert 1200.0 <= first.seen_at - first.last_step_at < 1201.0
    await peer.change(unmoved_s=1290.0, reward=0.7)
    await until(lambda: len(changes) == 2)
    again = orchestrators.state(KEY)
    assert again is not None
    assert again.last_step_at == first.last_step_at, "the step did not move"
    await peer.change(unmoved_s=3.0, step=1)
    await until(lambda: len(changes) == 3)
    moved = orchestrators.state(KEY)
    assert moved is not None
    assert 3.0 <= moved.seen_at - moved.last_step_at < 4.0


async def test_counters_that_no_decision_rests_on_are_no_change(
    orchestrators: Orchestrators, peer: Peer, changes: list[RunKey]
) -> None:
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    await peer.change(rates={"sampled_tokens_per_s": 2.0})
    await until(lambda: any(query.get("since") == "101" for query in peer.asked))
    assert changes == [KEY]


@pytest.mark.parametrize("other", [{"uid": "another"}, {"attempt": 1}])
async def test_an_answer_of_somebody_else_is_dropped(
    orchestrators: Orchestrators, peer: Peer, changes: list[RunKey], other: dict[str, Any]
) -> None:
    peer.state |= other
    orchestrators.follow(_target(peer))
    await until(lambda: len(peer.asked) >= 3)
    assert orchestrators.state(KEY) is None
    assert changes == []
    assert peer.asked[-1] == {}


async def test_unreachable_becomes_unknown_and_comes_back(
    orchestrators: Orchestrators, peer: Peer, changes: list[RunKey]
) -> None:
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    await peer.__aexit__()
    await until(lambda: orchestrators.state(KEY) is None)
    await until(lambda: len(changes) == 2)
    assert changes == [KEY, KEY], "told once that it is unknown"
    await peer.__aenter__()
    await until(lambda: orchestrators.state(KEY) is not None)
    assert len(changes) == 3


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=409, text="{}"),
        web.Response(text="no json"),
        web.Response(text='{"uid": 3}'),
        web.Response(body=b'{"uid": "\xff\xfe"}'),
        web.Response(text='{"rates": ' + "[" * 5000 + "]" * 5000 + "}"),
        web.Response(text='{"uid": "uid", "attempt": 2, "phase": "Running", "step": 9223372036854775808}'),
        web.Response(text='{"uid": "uid", "attempt": 2, "phase": "Running", "checkpoint": {"size_bytes": -1}}'),
    ],
    ids=["refused", "no JSON", "wrong type", "not UTF-8", "nested without end", "absurd step", "negative size"],
)
async def test_a_wrong_answer_is_no_answer(orchestrators: Orchestrators, peer: Peer, answer: web.Response) -> None:
    peer.answer = answer
    orchestrators.follow(_target(peer))
    await until(lambda: len(peer.asked) >= 3)
    assert orchestrators.state(KEY) is None


async def test_a_redirect_leads_nowhere(orchestrators: Orchestrators, peer: Peer) -> None:
    async with Peer() as other:
        peer.answer = web.Response(status=307, headers={"Location": f"http://{other.address}/state"})
        peer.redirects_stops_to = f"http://{other.address}/control/stop"
        orchestrators.follow(_target(peer))
        await until(lambda: len(peer.asked) >= 3)
        assert not await orchestrators.ask_to_stop(_target(peer))
        assert (other.asked, other.stops) == ([], 0)
    assert orchestrators.state(KEY) is None


async def test_an_answer_without_end_is_refused(orchestrators: Orchestrators, peer: Peer) -> None:
    peer.answer = web.Response(text='"' + "x" * (5 * 2**20) + '"')
    orchestrators.follow(_target(peer))
    await until(lambda: len(peer.asked) >= 2)
    assert orchestrators.state(KEY) is None


async def test_a_new_attempt_forgets_the_old_ones_state(orchestrators: Orchestrators, peer: Peer) -> None:
    orchestrators.follow(_target(peer))
    await until(lambda: orchestrators.state(KEY) is not None)
    orchestrators.follow(_target(peer, attempt=3))
    assert orchestrators.state(KEY) is None
    await peer.change(attempt=3)
    await until(lambda: orchestrators.state(KEY) is not None)
    orchestrators.forget(KEY)
    assert orchestrators.state(KEY) is None
    await until(lambda: peer.open == 0)


async def test_asks_to_stop_with_the_runs_token(orchestrators: Orchestrators, peer: Peer) -> None:
    assert await orchestrators.ask_to_stop(_target(peer))
    assert peer.stops == 1
    assert not await orchestrators.ask_to_stop(_target(peer, uid="another")), "refused"
    await peer.__aexit__()
    assert not await orchestrators.ask_to_stop(_target(peer)), "unreachable"
    await peer.__aenter__()


async def test_targets_named_before_it_runs_are_followed(peer: Peer, start) -> None:
    async with Orchestrators(TOKENS, on_change=lambda _: None, metrics=Metrics(), settings=FAST) as found:
        found.follow(_target(peer))
        running = start(found.run(), ends=True)
        await until(lambda: found.state(KEY) is not None)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
