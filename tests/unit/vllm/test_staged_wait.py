"""Waiting for staging to end: a question that the engine holds, and the workers' bell that ends it."""

import asyncio
import os
import select

import pytest

from echorl_testing.engines.gated_engine import Engine, until
from echorl_testing.engines.staging_worker import Worker, published
from echorl_vllm.bell import ring
from echorl_vllm.environment import ENV_WORK, bell_path

PATH = "/echorl/stage"


@pytest.fixture
async def engine(tmp_path, monkeypatch):
    """An engine with two workers, the second of which is still staging."""
    monkeypatch.setenv(ENV_WORK, str(tmp_path / "work"))
    engine = Engine(workers=2)
    await engine.stage()
    engine.vllm.workers[1]["stage"] = {**engine.vllm.workers[0]["stage"], "state": "staging"}
    return engine


def heard(pipe):
    """Whether the bell rings, within a deadline."""
    polled = select.poll()  # select takes no file beyond the 1,024th, which a process of many tests may have
    polled.register(pipe, select.POLLIN)
    return bool(polled.poll(60_000)) and os.read(pipe, 1) == b"\n"


def asked(engine):
    return engine.vllm.calls.count("echorl_status")


async def test_the_answer_comes_when_a_worker_rings_and_none_is_staging_any_more(engine):
    asking = asyncio.create_task(engine.ask("GET", PATH, query="wait=60"))
    await until(lambda: asked(engine) == 1)
    ring(bell_path())
    await until(lambda: asked(engine) == 2)
    assert not asking.done(), "one of two is staging still"
    engine.vllm.workers[1]["stage"] = engine.vllm.workers[0]["stage"]
    ring(bell_path())
    status, body, _ = await asking
    assert (status, [worker["state"] for worker in body["workers"]]) == (200, ["staged", "staged"])
    assert asked(engine) == 3, "workers are asked when the bell rang, and not now and then"


async def test_the_answer_comes_at_the_deadline(engine):
    for query in ("", "wait=0", "wait=0.05"):
        _, body, _ = await engine.ask("GET", PATH, query=query)
        assert [worker["state"] for worker in body["workers"]] == ["staged", "staging"]


async def test_what_is_in_the_way_of_the_bell_is_removed(engine):
    bell_path().parent.mkdir()
    bell_path().write_text("of an engine before")
    asking = asyncio.create_task(engine.ask("GET", PATH, query="wait=60"))
    await until(lambda: asked(engine) == 1)
    engine.vllm.workers[1]["stage"] = engine.vllm.workers[0]["stage"]
    ring(bell_path())
    assert (await asking)[0] == 200


@pytest.mark.parametrize("wait", ["soon", "-1", "1000", "nan"])
async def test_a_wait_that_is_none_is_refused(engine, wait):
    status, body, _ = await engine.ask("GET", PATH, query=f"wait={wait}")
    assert status == 400
    assert "accepted" in body["error"]


def test_a_worker_rings_when_its_staging_has_ended(environment, model, monkeypatch):
    monkeypatch.setenv(ENV_WORK, str(environment))
    os.mkfifo(bell_path())
    listening = os.open(bell_path(), os.O_RDWR | os.O_NONBLOCK)
    worker = Worker(model)
    assert worker.staged(environment / "p", published(model, environment / "p")).state == "staged"
    assert heard(listening)
    assert worker.staged(environment / "q", "0" * 64, version=2).state == "failed"
    assert heard(listening)
    os.close(listening)


def test_nobody_needs_to_listen(tmp_path):
    ring(tmp_path / "nothing")
    os.mkfifo(tmp_path / "unheard")
    ring(tmp_path / "unheard")
