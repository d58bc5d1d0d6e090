"""The gate in front of an engine, driven as uvicorn drives it, with a stand-in for vLLM's own routes."""

import asyncio
import json
import time

import pytest

from echorl_testing.fake_vllm import FakeVllm
from echorl_vllm.middleware import EngineGate

DIGEST = "d" * 64
CHAT = "/v1/chat/completions"


class Engine:
    """A gate, what it guards, and how often it would have ended the process."""

    def __init__(self, workers=1, token="secret"):
        self.vllm = FakeVllm(workers)
        self.ended = 0
        self.gate = EngineGate(self.vllm, token=token, run_uid="run-1", end_engine=self._end)

    def _end(self):
        self.ended += 1

    async def ask(self, method, path, body=None, headers=None, *, token="secret"):
        """Status, decoded body and headers of one request."""
        sent, given = [], {"X-EchoRL-Token": token, **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items() if value is not None],
            "app": object(),
        }
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def receive():
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message):
            sent.append(message)

        await self.gate(scope, receive, send)
        head = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], json.loads(b"".join(part["body"] for part in sent[1:])), head

    async def stage(self, version=1, attempt=1):
        body = {"attempt": attempt, "version": version, "url": "http://x/m", "digest": DIGEST, "deadline_s": 5}
        return await self.ask("POST", "/echorl/stage", body)

    async def pause(self, lease_s=30.0):
        return await self.ask("POST", "/echorl/pause", {"lease_s": lease_s})

    async def apply(self, version=1, attempt=1):
        return await self.ask("POST", "/echorl/apply", {"attempt": attempt, "version": version, "digest": DIGEST})

    async def resume(self):
        return await self.ask("POST", "/echorl/resume")

    async def identity(self):
        return (await self.ask("GET", "/echorl/identity"))[1]

    async def update(self, version=1, attempt=1):
        answers = [await self.stage(version, attempt), await self.pause(), await self.apply(version, attempt)]
        answers.append(await self.resume())
        assert [status for status, *_ in answers] == [200] * 4
        return answers


async def until(condition, deadline_s=60.0):
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


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


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/version", "/tokenize"])
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


async def test_a_lease_that_ends_before_an_apply_resumes():
    engine = Engine()
    await engine.stage()
    await engine.pause(0.5)
    assert engine.vllm.paused
    await until(lambda: not engine.vllm.paused)
    assert (await engine.identity())["paused"] is False
    assert (await engine.apply())[0] == 409
    assert engine.ended == 0


async def test_a_lease_that_ends_after_an_apply_ends_the_engine():
    engine = Engine()
    await engine.stage()
    await engine.pause(1.0)
    assert (await engine.apply())[0] == 200
    await until(lambda: engine.ended == 1)
    assert engine.vllm.paused


async def test_a_hanging_apply_outlives_its_lease_and_ends_the_engine():
    engine = Engine()
    engine.vllm.hold["echorl_apply"] = asyncio.Event()
    await engine.stage()
    await engine.pause(1.0)
    hanging = asyncio.create_task(engine.apply())
    await until(lambda: engine.ended == 1)
    engine.vllm.hold["echorl_apply"].set()
    assert (await hanging)[0] == 200


async def test_a_lease_renewed_during_an_apply_holds():
    engine = Engine()
    engine.vllm.hold["echorl_apply"] = asyncio.Event()
    await engine.stage()
    await engine.pause(1.0)
    first_end = time.monotonic() + 1.0
    running = asyncio.create_task(engine.apply())
    await until(lambda: "echorl_apply" in engine.vllm.calls)
    assert (await engine.pause(30))[0] == 200
    await until(lambda: time.monotonic() > first_end + 0.1)
    engine.vllm.hold["echorl_apply"].set()
    assert (await running)[0] == 200
    assert (await engine.resume())[0] == 200
    assert engine.ended == 0


async def test_an_apply_that_touched_nothing_leaves_the_lease_to_resume():
    engine = Engine()
    await engine.stage()
    await engine.pause(1.0)
    engine.vllm.apply_answers = [{"error": "not staged: aborted"}]
    assert (await engine.apply())[:2] == (409, {"error": "not staged: aborted"})
    await until(lambda: not engine.vllm.paused)
    assert engine.ended == 0


HALF = [{"error": "RuntimeError: shapes", "broken": True}]
GOOD = {"attempt": 1, "version": 1, "digest": DIGEST, "seconds": 0.1}


@pytest.mark.parametrize(
    "answers", [HALF, [{"applied": GOOD}, {"error": "not staged"}], [{"applied": {**GOOD, "version": 2}}]]
)
async def test_a_half_applied_version_ends_the_engine(answers):
    engine = Engine()
    await engine.update(version=1)
    await engine.stage()
    await engine.pause()
    engine.vllm.apply_answers = answers
    status, body, _ = await engine.apply()
    assert status == 500
    assert "half replaced" in body["error"]
    assert (await engine.ask("POST", CHAT, {}))[0] == 409
    assert (await engine.resume())[0] == 409
    assert (await engine.identity())["ready"] is False
    await until(lambda: engine.ended == 1)
    assert engine.vllm.paused


async def test_an_engine_that_answers_an_apply_with_an_error_ends():
    engine = Engine()
    await engine.stage()
    await engine.pause()
    original = engine.vllm._answer

    async def dying(path, query, body):
        if body and body.get("method") == "echorl_apply":
            raise RuntimeError("EngineDeadError")
        return await original(path, query, body)

    engine.vllm._answer = dying
    status, body, _ = await engine.apply()
    assert status == 502
    assert "EngineDeadError" in body["error"]
    await until(lambda: engine.ended == 1)


async def test_a_failed_pause_is_taken_back():
    engine = Engine()
    engine.vllm.failing["/pause"] = 500
    status, body, _ = await engine.pause()
    assert status == 502
    assert "/pause: HTTP 500" in body["error"]
    assert engine.vllm.calls == ["/pause", "/resume"]
    assert (await engine.identity())["paused"] is False
    engine.vllm.failing["/resume"] = 500
    assert (await engine.pause())[0] == 502
    await until(lambda: engine.ended == 1)


async def test_a_resume_that_fails_at_the_lease_end_ends_the_engine():
    engine = Engine()
    engine.vllm.failing["/resume"] = 500
    await engine.pause(0.05)
    await until(lambda: engine.ended == 1)


async def test_a_pause_that_hangs_is_given_up_at_its_lease():
    engine = Engine()
    engine.vllm.hold["/pause"] = asyncio.Event()
    status, body, _ = await engine.pause(0.05)
    assert status == 504
    assert "no answer from the engine within 0.05 s" in body["error"]


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
    ],
)
async def test_bad_calls_are_refused(method, path, body, status):
    engine = Engine()
    answered, answer, _ = await engine.ask(method, path, body)
    assert answered == status
    assert answer["error"]
    assert engine.vllm.calls == []


async def test_websockets_are_refused_and_lifespan_passes():
    engine, sent = Engine(), []

    async def send(message):
        sent.append(message)

    await engine.gate({"type": "websocket", "path": "/v1/realtime", "headers": []}, None, send)
    assert sent[0]["type"] == "websocket.close"
    await engine.gate({"type": "lifespan"}, None, send)
    assert engine.vllm.calls == ["lifespan"]
