import asyncio

import pytest

from echorl_testing.engines.gated_engine import CHAT, DIGEST, Engine, until
from echorl_vllm.asgi import HttpError, read_body


@pytest.mark.parametrize(
    "path",
    [
        *("/collective_rpc", "/pause", "/resume", "/update_weights", "/v1/load_lora_adapter", "/docs", "/invocations"),
        *("/v1/chat/completions/", "/echorl/identity", "/echorl/resume", "/something_new"),
    ],
)
async def test_closed_routes_need_the_token(path):
    engine = Engine()
    for token in (None, "", "secre", "secret2", "sécret"):
        status, body, _ = await engine.ask("POST", path, {"method": "x", "args": []}, token=token)
        assert status == 403
        assert "token" in body["error"]
    assert engine.vllm.calls == []


async def test_closed_routes_open_with_the_token_but_not_without_a_configured_one(monkeypatch):
    assert (await Engine().ask("POST", "/server_info"))[0] == 200
    monkeypatch.delenv("ECHORL_ADMIN_TOKEN", raising=False)
    assert (await Engine(token=None).ask("POST", "/server_info", token=""))[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        *("/health", "/metrics", "/v1/models", "/version", "/tokenize"),
        *("/v1/chat/completions/render", "/v1/chat/completions/derender"),
    ],
)
async def test_open_routes_need_nothing(path):
    status, body, headers = await Engine().ask("GET", path, token=None)
    assert (status, body) == (200, {"path": path})
    assert headers["x-echorl-version"] == headers["x-echorl-attempt"] == "-1"


async def test_generation_waits_for_the_first_apply_and_is_stamped():
    engine = Engine()
    for path in (CHAT, "/v1/completions", "/inference/v1/generate"):
        status, body, _ = await engine.ask("POST", path, {}, token=None)
        assert status == 409
        assert "no version was applied" in body["error"]
    await engine.update(version=7, attempt=2)
    status, _, headers = await engine.ask("POST", CHAT, {}, token=None)
    assert status == 200
    assert (headers["x-echorl-attempt"], headers["x-echorl-version"]) == ("2", "7")
    assert headers["x-echorl-boot"] == (await engine.identity())["boot_id"]


async def test_other_runs_and_attempts_are_refused():
    engine = Engine()
    await engine.update(attempt=2)
    for path in (CHAT, "/health", "/echorl/identity"):
        assert (await engine.ask("GET", path, headers={"X-EchoRL-Run": "run-2"}))[0] == 409
    mine = {"X-EchoRL-Run": "run-1"}
    assert (await engine.ask("POST", CHAT, {}, headers={**mine, "X-EchoRL-Attempt": "1"}))[0] == 409
    assert (await engine.ask("POST", CHAT, {}, headers={**mine, "X-EchoRL-Attempt": "2"}))[0] == 200
    assert (await engine.stage(attempt=1))[0] == 409
    assert (await engine.apply(attempt=1))[0] == 409
    assert (await engine.stage(attempt=3))[0] == 200


async def test_an_update_calls_the_engine_in_order_and_shows_in_the_identity():
    engine = Engine(workers=2)
    before = await engine.identity()
    assert before["ready"] is False
    assert before["attempt"] is before["version"] is before["digest"] is before["lease_s"] is None
    _, _, (_, applied, _), _ = await engine.update(version=3)
    assert applied["workers"] == [{"attempt": 1, "version": 3, "digest": DIGEST, "seconds": 0.01}] * 2
    assert engine.vllm.calls == ["echorl_stage", "/pause", "echorl_status", "echorl_apply", "/resume"]
    assert engine.vllm.modes == ["keep"]
    after = await engine.identity()
    assert after == {**before, "attempt": 1, "version": 3, "digest": DIGEST, "ready": True}
    assert after["boot_id"] != (await Engine().identity())["boot_id"]
    assert (await engine.ask("GET", "/echorl/stage"))[1]["workers"][1]["state"] == "idle"


async def test_apply_needs_a_pause_and_the_version_on_every_worker():
    engine = Engine(workers=2)
    await engine.stage()
    assert (await engine.apply())[0] == 409
    await engine.pause()
    engine.vllm.workers[1] = {**engine.vllm.workers[1], "stage": {**engine.vllm.workers[1]["stage"], "version": 9}}
    status, body, _ = await engine.apply()
    assert status == 409
    assert "version 9" in body["error"]
    assert "echorl_apply" not in engine.vllm.calls
    assert (await engine.ask("POST", "/echorl/abort"))[1]["workers"][0]["state"] == "idle"


async def test_a_repeated_apply_answers_the_same():
    engine = Engine()
    await engine.stage()
    await engine.pause()
    assert (await engine.apply())[:2] == (await engine.apply())[:2]


async def test_resume_and_pause_may_be_repeated():
    engine = Engine()
    assert (await engine.resume())[0] == 200
    assert (await engine.pause(5))[0] == 200
    status, identity, _ = await engine.pause(50)
    assert status == 200
    assert identity["lease_s"] > 40
    assert engine.vllm.calls.count("/pause") == 1
    for _ in range(2):
        assert (await engine.resume())[1]["paused"] is False
    assert engine.vllm.paused is False


async def test_running_generation_is_counted_also_when_it_is_cancelled():
    engine = Engine()
    await engine.update()
    engine.vllm.hold[CHAT] = asyncio.Event()
    tasks = [asyncio.create_task(engine.ask("POST", CHAT, {})) for _ in range(3)]
    await until(lambda: engine.vllm.calls.count(CHAT) == 3)
    assert (await engine.identity())["running"] == 3
    tasks[0].cancel()
    await asyncio.wait(tasks[:1])
    assert (await engine.identity())["running"] == 2
    engine.vllm.hold[CHAT].set()
    await asyncio.gather(*tasks[1:])
    assert (await engine.identity())["running"] == 0


async def test_running_requests_can_be_aborted():
    assert (await Engine().ask("POST", "/echorl/abort_requests"))[:2] == (200, {"aborted": 3})


@pytest.mark.parametrize("paused", [False, True])
async def test_running_requests_can_be_aborted_in_an_older_vllm(paused):
    engine = Engine()
    engine.vllm.failing["/abort_requests"] = 404
    if paused:
        await engine.pause()
    assert (await engine.ask("POST", "/echorl/abort_requests"))[:2] == (200, {"aborted": None})
    assert engine.vllm.modes == (["keep", "abort", "keep"] if paused else ["abort"])
    assert engine.vllm.paused is paused


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/echorl/nothing", {}, 404),
        ("GET", "/echorl/apply", {}, 405),
        ("POST", "/echorl/apply", b"{", 400),
        ("POST", "/echorl/apply", {"attempt": 1}, 400),
        ("POST", "/echorl/pause", {"lease_s": 0}, 400),
        ("POST", "/echorl/pause", {"lease_s": 1e9}, 400),
        ("POST", "/echorl/stage", {"attempt": 1, "version": 1, "url": "u", "digest": "d", "deadline_s": -1}, 400),
        ("POST", "/echorl/stage", b" " * (1 << 21), 413),
        ("POST", "/echorl/stage", b"[" * 100_000, 400),
        ("POST", "/echorl/apply", b'{"attempt": "\xff\xfe"}', 400),
        ("POST", "/tokenize", b" " * ((64 << 20) + 1), 413),
    ],
)
async def test_bad_calls_are_refused(method, path, body, status):
    engine = Engine()
    answered, answer, _ = await engine.ask(method, path, body)
    assert answered == status
    assert answer["error"]
    assert engine.vllm.calls == []


async def test_a_long_prompt_reaches_vllm_whole_and_a_body_without_end_does_not():
    engine = Engine()
    await engine.update()
    before = list(engine.vllm.calls)
    assert (await engine.ask("POST", CHAT, {"prompt": list(range(100_000))}))[0] == 200
    assert engine.vllm.calls == [*before, CHAT]
    assert (await engine.ask("POST", CHAT, b" " * ((64 << 20) + 1)))[0] == 413
    assert engine.vllm.calls == [*before, CHAT]


async def test_a_body_that_does_not_come_is_not_waited_for():
    async def receive():
        await asyncio.Event().wait()

    with pytest.raises(HttpError, match="did not arrive within") as caught:
        await read_body(receive, within_s=0.01)
    assert caught.value.status == 408


async def test_websockets_are_refused_and_lifespan_passes():
    engine, sent = Engine(), []

    async def send(message):
        sent.append(message)

    await engine.gate({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
    assert sent[0]["type"] == "websocket.close"
    await engine.gate({"type": "lifespan"}, None, send)
    assert engine.vllm.calls == ["lifespan"]
