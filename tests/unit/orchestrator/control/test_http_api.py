import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from echorl_core import names
from echorl_core.arrays import unpack
from echorl_core.names import Phase
from echorl_core.wire.batch import WIRE_VERSION, RankBatch, StopNotice
from echorl_core.wire.reports import LogprobGap, RestartReport, StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing.orchestrator.sealed import identity, parts_report, seal_step
from echorl_testing.orchestrator.served_api import TOKEN, ServedApi

Client = TestClient[web.Request, web.Application]
HEADERS = {**identity().headers(), names.HEADER_TOKEN: TOKEN}


@pytest.fixture
def served(tmp_path: Path) -> ServedApi:
    return ServedApi(tmp_path)


@pytest.fixture
async def client(served: ServedApi) -> AsyncIterator[Client]:
    async with TestClient(TestServer(served.app)) as made:
        yield made


def announcement(attempt: int = 1) -> PolicyAnnouncement:
    return PolicyAnnouncement(attempt=attempt, version=0, digest="d", url="http://x", size_bytes=1, seconds_gather=0.0)


async def test_a_batch_is_pulled_as_bytes_and_again(served: ServedApi, client: Client) -> None:
    seal_step(served.store, 1, ranks=2)
    bodies = []
    for rank in (0, 1, 0):
        answer = await client.get("/trainer/batch", params={"step": 1, "rank": rank}, headers=HEADERS)
        assert answer.status == 200
        bodies.append(await answer.read())
    assert [unpack(body, RankBatch).rank for body in bodies] == [0, 1, 0]
    assert bodies[0] == bodies[2]


async def test_a_long_poll_ends_with_the_seal(served: ServedApi, client: Client) -> None:
    asked = asyncio.create_task(
        client.get("/trainer/batch", params={"step": 1, "rank": 0, "wait": 20}, headers=HEADERS)
    )
    seal_step(served.store, 1, ranks=2)
    await served.desk.sealed()
    async with asyncio.timeout(60):
        assert (await asked).status == 200


async def test_a_batch_that_is_not_sealed_is_204_and_a_stop_is_410(served: ServedApi, client: Client) -> None:
    pull = {"params": {"step": 1, "rank": 0}, "headers": HEADERS}
    assert (await client.get("/trainer/batch", **pull)).status == 204
    stop = await client.post("/control/stop", headers=HEADERS)
    assert stop.status == 200
    answer = await client.get("/trainer/batch", **pull)
    assert answer.status == 410
    expected = StopNotice(reason="stopped", step=0, checkpoint=False)
    assert msgspec.json.decode(await answer.read(), type=StopNotice) == expected


async def test_live_settings_are_taken_in_once(served: ServedApi, client: Client) -> None:
    call = {"data": b'{"generation": 7, "max_steps": 99}', "headers": HEADERS}
    answer = await client.post("/control/live", **call)
    assert (answer.status, await answer.json()) == (200, {"generation": 7, "in_effect": False})
    served.live.adopt()
    answer = await client.post("/control/live", **call)
    assert (answer.status, await answer.json()) == (200, {"generation": 7, "in_effect": True})


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "LiveSettings: "),
        (b"{", 400, "LiveSettings: "),
        (b'{"generation": 2, "max_steps": -1}', 400, "$.max_steps"),
        (b'{"generation": 2, "seed": 3}', 400, "unknown field `seed`"),
        (b'{"generation": 2, "eval_intervals": {"x": 1}}', 400, "no such eval environment, accepted are held-out"),
        (b'{"generation": 1, "max_steps": 5}', 409, "generation: found 1"),
    ],
)
async def test_live_settings_that_are_refused(
    served: ServedApi, client: Client, body: bytes, status: int, words: str
) -> None:
    headers = HEADERS
    assert (await client.post("/control/live", data=b'{"generation": 1}', headers=headers)).status == 200
    served.live.adopt()
    answer = await client.post("/control/live", data=body, headers=headers)
    assert answer.status == status
    assert words in (await answer.json())["error"]
    assert not served.live.waiting


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "message of run None"),
        (identity(uid="other").headers(), "message of run 'other'"),
        (identity(2).headers(), "message of attempt '2'; this is attempt 1"),
        ({**HEADERS, names.HEADER_WIRE: "99"}, f"message of wire version '99'; this is {WIRE_VERSION}"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/trainer/batch?step=1&rank=0"),
        ("POST", "/trainer/policy"),
        ("POST", "/trainer/step"),
        ("POST", "/trainer/parts"),
        ("POST", "/control/stop"),
        ("POST", "/control/live"),
    ],
)
async def test_foreign_messages_are_refused(
    served: ServedApi, client: Client, method: str, path: str, headers: dict[str, str], words: str
) -> None:
    answer = await client.request(method, path, headers=headers)
    assert answer.status == 409
    assert words in (await answer.json())["error"]
    assert served.arrived == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/trainer/batch?step=1&rank=0"),
        ("POST", "/trainer/policy"),
        ("POST", "/trainer/step"),
        ("POST", "/trainer/parts"),
        ("POST", "/trainer/notice"),
        ("POST", "/trainer/restart"),
    ],
)
async def test_ranks_of_a_lost_pod_are_refused_once_others_have_started(
    served: ServedApi, client: Client, method: str, path: str
) -> None:
    await served.desk.restarted(RestartReport(attempt=1, step=0, count=2, reason="lost", replacements=1))
    answer = await client.request(method, path, headers={**HEADERS, names.HEADER_RESTARTS: "1"})
    assert answer.status == 409
    assert "a rank of before restart 2 in place" in (await answer.json())["error"]
    assert served.arrived == []
    pull = {"params": {"step": 1, "rank": 0}, "headers": {**HEADERS, names.HEADER_RESTARTS: "2"}}
    assert (await client.get("/trainer/batch", **pull)).status == 204


async def test_messages_arrive_typed(served: ServedApi, client: Client) -> None:
    gap = LogprobGap(tokens=0, max_abs=None, mean_abs=None, over_tolerance=0)
    report = StepReport(attempt=1, step=1, metrics={}, gap=gap, trained_tokens=1, packed_tokens=1, seconds={})
    parts = parts_report(served.run, 1)
    seal_step(served.store, 1, ranks=2)
    assert (await client.get("/trainer/batch?step=1&rank=0", headers=HEADERS)).status == 200
    for path, message in (("policy", announcement()), ("step", report), ("parts", parts)):
        answer = await client.post(f"/trainer/{path}", data=msgspec.json.encode(message), headers=HEADERS)
        assert answer.status == 200
    assert (await answer.json()) == {"state": "waiting"}
    assert served.arrived == [announcement(), report, parts]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "PolicyAnnouncement"),
        (b'{"attempt": 1}', 400, "wire_version: found 1, accepted is 2"),
        (b'{"wire_version": 2, "attempt": 1}', 400, "missing required field"),
        (msgspec.json.encode(announcement(attempt=2)), 409, "of attempt 2; this is attempt 1"),
    ],
)
async def test_wrong_bodies_are_refused(
    served: ServedApi, client: Client, body: bytes, status: int, words: str
) -> None:
    answer = await client.post("/trainer/policy", data=body, headers=HEADERS)
    assert answer.status == status
    assert words in (await answer.json())["error"]
    assert served.arrived == []


@pytest.mark.parametrize(
    "query", ["", "?step=1", "?step=x&rank=0", "?step=1&rank=0&wait=nan", "?step=1&rank=0&wait=-1"]
)
async def test_wrong_pulls_are_refused(client: Client, query: str) -> None:
    assert (await client.get(f"/trainer/batch{query}", headers=HEADERS)).status == 400


async def test_pulls_of_no_rank_and_of_released_batches_are_404(client: Client) -> None:
    for query in ("step=1&rank=2", "step=0&rank=0"):
        assert (await client.get(f"/trainer/batch?{query}", headers=HEADERS)).status == 404


async def test_parts_of_no_rank_are_refused(served: ServedApi, client: Client) -> None:
    body = msgspec.json.encode(parts_report(served.run, 1, rank=2))
    assert (await client.post("/trainer/parts", data=body, headers=HEADERS)).status == 400


async def test_state_is_strict_json_for_everybody_but_another_attempt(served: ServedApi, client: Client) -> None:
    answer = await client.get("/state")
    state = json.loads(await answer.text(), parse_constant=pytest.fail)
    assert state["phase"] == "Running"
    assert state["reward"] is None
    assert (await client.get("/state", headers=identity(2).headers())).status == 409
    assert (await client.get("/state", params={"since": "x"})).status == 400


async def test_state_waits_for_a_new_revision(served: ServedApi, client: Client) -> None:
    revision = (await (await client.get("/state")).json())["revision"]
    asked = asyncio.create_task(client.get("/state", params={"since": revision, "wait": 20}))
    served.content["phase"] = Phase.SUCCEEDED
    await served.board.refresh()
    async with asyncio.timeout(60):
        assert (await (await asked).json())["phase"] == "Succeeded"


async def test_health_and_metrics(served: ServedApi, client: Client) -> None:
    assert (await client.get("/healthz")).status == 200
    served.health.tick(9.0, served.health._looked + 9.0)
    unhealthy = await client.get("/healthz")
    assert unhealthy.status == 503
    assert "blocked for 8.5 s" in await unhealthy.text()
    text = await (await client.get("/metrics")).text()
    assert "echorl_orchestrator_trained_step 3.0" in text
    assert 'echorl_orchestrator_episode_failures_total{kind="env"} 5.0' in text
    assert "echorl_orchestrator_steps_total 2.0" in text
    assert 'echorl_orchestrator_engines_inter_token_latency_seconds_bucket{le="0.1"} 2.0' in text
    assert "echorl_orchestrator_engines_inter_token_latency_seconds_count 3.0" in text
    assert 'echorl_orchestrator_weight_update_seconds_sum{part="pause"} 0.2' in text
    for use, count, size in (("used", 2, 42), ("no_base", 1, 900), ("none", 0, 0), ("refused", 0, 0)):
        assert f'echorl_orchestrator_weight_downloads_total{{result="{use}"}} {count}.0' in text
        assert f'echorl_orchestrator_weight_download_bytes_total{{result="{use}"}} {size}.0' in text
    assert "committed_step" not in text
    assert "timeout" not in text
