"""Engines that come, restart and go, and who gets traffic meanwhile."""

import asyncio
import socket
import time
from typing import Any

import pytest

from echorl_orchestrator.engines.engine import LEGAL, Engine, EngineState
from echorl_orchestrator.engines.timing import Timing
from echorl_testing.engines.fake_engine import FakeEngine, policy

IMPATIENT = Timing(
    identity_s=0.02, silence_s=3.0, metrics_s=0.05, look_s=1.0, stage_again_s=0.005, retry_first_s=0.02, retry_max_s=0.1
)


async def test_no_traffic_before_the_first_sync(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        call = harness.call()
        await harness.state(engine, "syncing")
        assert harness.pool.version_for_dispatch() == -1
        assert harness.pool.served() is None
        gate = engine.hold("apply")
        harness.pool.announce(policy(0))
        await engine.until(lambda: "apply" in engine.named())
        assert "generate" not in engine.named()
        gate.set()
        assert (await call).version_low == 0
        assert engine.named("apply", "generate") == ["apply", "generate"]


async def test_engine_is_starting_until_its_health_is_good(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.healthy = False
        harness.pool.announce(policy(0))
        await harness.state(engine, "starting")
        await engine.until(lambda: engine.named().count("health") > 3)
        assert "stage" not in engine.named()
        engine.healthy = True
        await harness.pool.wait_served(0, 60)


async def test_others_take_over_the_requests_of_a_lost_engine(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        first.hold("generate")
        second.hold("generate")
        call = harness.call()
        await harness.eventually(lambda: bool(first.running or second.running))
        lost, other = (first, second) if first.running else (second, first)
        await lost.stop()
        await harness.state(lost, "lost")
        other.hold("generate").set()
        assert (await call).engine == (await harness.generate()).engine == other.address


async def test_engine_that_falls_silent_is_lost(running_pool):
    async with FakeEngine() as engine, running_pool(engine, timing=IMPATIENT) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.hold("generate")
        call = harness.call()
        await engine.until(lambda: len(engine.running) == 1)
        gate = engine.hold("identity")
        await harness.state(engine, "lost")
        await engine.until(lambda: "generate" in engine.cancelled)
        assert not call.done()
        gate.set()
        engine.hold("generate").set()
        assert (await call).token_ids == [7, 8, 9]


async def test_engine_that_was_lost_while_the_machine_stood_still_is_found_again(running_pool):
    async with FakeEngine() as engine, running_pool(engine, timing=IMPATIENT) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        answers = [engine.hold(call) for call in ("identity", "metrics")]
        waiting = len(engine.named("identity")), len(engine.named("metrics"))
        await engine.until(
            lambda: len(engine.named("identity")) > waiting[0] and len(engine.named("metrics")) > waiting[1]
        )
        # Every time-out is due at once then, and a cancellation that comes with one is swallowed by the client's timer.
        time.sleep(5)  # noqa: ASYNC251 - the event loop is to stand still
        await harness.state(engine, "lost")
        for answer in answers:
            answer.set()
        await harness.pool.wait_served(0, 60)


async def test_failed_health_check_loses_the_engine(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.healthy = False
        await harness.eventually(lambda: harness.pool.served() is None)
        assert harness.view(engine).state in {"lost", "starting"}


async def test_restarted_engine_is_synced_again_before_it_gets_traffic(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate = engine.hold("generate")
        before = harness.call("before")
        await engine.until(lambda: len(engine.running) == 1)
        old = engine.boot_id
        engine.reboot()
        await engine.until(lambda: "generate" in engine.cancelled)
        gate.set()
        assert (await before).boot_id == engine.boot_id
        generation = await harness.generate("after")
        assert generation.boot_id == engine.boot_id != old
        calls = [(name, info["boot_id"]) for name, info in engine.calls if name in {"apply", "generate"}]
        new = engine.boot_id
        assert calls == [("apply", old), ("generate", old), ("apply", new), ("generate", new), ("generate", new)]


async def test_answer_from_another_boot_is_not_used(running_pool):
    async with FakeEngine() as engine, running_pool(engine, timing=Timing(identity_s=60.0)) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        held = engine.held
        engine.reboot()
        engine.held = held
        assert (await harness.generate()).boot_id == engine.boot_id
        assert engine.named("generate") == ["generate"] * 2


async def test_policy_that_someone_else_applied_quarantines(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.hold("stage")
        engine.held = {"attempt": 1, "version": 9, "digest": "digest-1-9"}
        await harness.state(engine, "quarantined")
        assert "holds attempt 1 version 9" in harness.view(engine).error


async def test_engine_of_another_run_is_never_used(running_pool):
    async with FakeEngine(run_uid="other") as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.views() != [] and harness.view(engine).error is not None)
        assert harness.view(engine).state == "discovered"
        assert "belongs to run 'other'" in harness.view(engine).error
        assert "stage" not in engine.named()


async def test_one_server_at_two_addresses_is_one_engine(running_pool):
    same = {"boot_id": "same"}
    async with FakeEngine(**same) as first, FakeEngine(**same) as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        await harness.eventually(lambda: any("already known" in str(view.error) for view in harness.pool.views()))
        assert sorted(view.state for view in harness.pool.views()) == ["discovered", "serving"]


async def test_run_token_and_extra_headers_go_along(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        await harness.generate("episode-7")
        headers = {name: info["headers"] for name, info in engine.calls}
        assert all(sent["X-EchoRL-Run"] == "run-uid" for sent in headers.values())
        assert headers["generate"]["X-Session-ID"] == "episode-7"
        assert headers["generate"]["X-Extra"] == "yes"
        assert "X-EchoRL-Token" not in headers["generate"]
        assert not any(value.startswith("another") for sent in headers.values() for value in sent.values())
        assert headers["apply"]["X-EchoRL-Token"] == "admin-token"


async def test_pool_waits_for_a_server_that_is_not_there_yet(running_pool):
    engine = FakeEngine()
    await engine.start()
    await engine.stop()
    async with running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.views() != [] and harness.view(engine).error is not None)
        await engine.start()
        await harness.pool.wait_served(0, 60)
        await engine.stop()


async def test_wait_served_says_what_it_waited_for(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        with pytest.raises(TimeoutError, match=r"version 0 is not served after 0\.05 s"):
            await harness.pool.wait_served(0, 0.05)


async def test_illegal_transition_is_a_bug():
    engine = Engine("127.0.0.1:1", lambda: None)
    with pytest.raises(ValueError, match="discovered -> serving"):
        engine.move(EngineState.SERVING)
    assert LEGAL.keys() == set(EngineState)


async def test_engines_follow_what_the_name_resolves_to(running_pool, monkeypatch):
    async with FakeEngine() as first, FakeEngine(host="127.0.0.2", port=first.port) as second:
        hosts = ["127.0.0.1"]

        def getaddrinfo(host, port, **_):
            assert host == "engines"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        async with running_pool(names=[f"engines:{first.port}"]) as harness:
            harness.pool.announce(policy(0))
            await harness.pool.wait_served(0, 60)
            gate = second.hold("apply")
            hosts.append("127.0.0.2")
            await second.until(lambda: "apply" in second.named())
            harness.pool.announce(policy(1))
            await harness.eventually(lambda: harness.view(first).version == 1)
            # It comes late with version 0, which the others have left: no traffic before version 1.
            stage_gate = second.hold("stage")
            gate.set()
            await second.until(lambda: second.named("stage") == ["stage"] * 2)
            assert (harness.view(second).state, harness.view(second).version) == ("syncing", 0)
            stage_gate.set()
            await harness.state(second, "serving")
            assert [body["version"] for body in second.bodies("apply")] == [0, 1]
            assert harness.pool.served() == (1, 1)
            first.hold("generate")
            second.hold("generate")
            calls = {asyncio.create_task(harness.generate(f"e{i}")) for i in range(2)}
            await harness.eventually(lambda: len(first.running) == len(second.running) == 1)
            hosts.remove("127.0.0.1")
            second.hold("generate").set()
            assert {one.engine for one in await asyncio.gather(*calls)} == {second.address}
            await harness.eventually(lambda: [view.name for view in harness.pool.views()] == [second.address])


async def test_metrics_are_summed_and_survive_a_restart(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        await asyncio.gather(*(harness.generate(f"e{i}") for i in range(4)))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["generation_tokens_total"] == 12)
        engine.reboot()
        engine.counters.clear()
        await harness.eventually(lambda: harness.view(engine).boot_id == engine.boot_id)
        await harness.state(engine, "serving")
        await harness.generate()
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["generation_tokens_total"] == 15)


async def test_what_an_engine_sampled_for_an_earlier_orchestrator_is_not_counted_again(running_pool):
    async with FakeEngine() as engine:
        engine.held = {"attempt": 1, "version": 3, "digest": "other"}
        engine.counters["generation_tokens_total"] = 1000
        async with running_pool(engine) as harness:
            harness.pool.announce(policy(4))
            await harness.pool.wait_served(4, 60)
            await harness.eventually(lambda: engine.named("metrics"))
            await harness.generate()
            await harness.eventually(lambda: harness.pool.metrics_snapshot()["generation_tokens_total"] == 3)


async def test_an_engine_that_was_given_notice_ends_its_requests_and_gets_no_more(running_pool):
    async with FakeEngine() as first, FakeEngine() as second, running_pool(first, second) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        gates = [engine.hold("generate") for engine in (first, second)]
        call = harness.call("sticks")
        await harness.eventually(lambda: bool(first.running or second.running))
        leaving, other = (first, second) if first.running else (second, first)
        (gates[1] if other is second else gates[0]).set()
        leaving.draining = True
        # Refused before the pool knows, it goes elsewhere; its episode stays there.
        moved = [await harness.generate("sticks") for _ in range(2)]
        assert [made.engine for made in moved] == [other.address] * 2
        await harness.state(leaving, "draining")
        assert harness.pool.metrics_snapshot()["engines"] == 1
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        assert harness.view(leaving).version == 0, "it is not updated any more"
        asked = len(leaving.named("generate"))
        for number in range(4):
            assert (await harness.generate(f"new {number}")).engine == other.address
        assert len(leaving.named("generate")) == asked
        for gate in gates:
            gate.set()
        made = await call
        assert (made.engine, made.version_high, made.token_ids) == (leaving.address, 0, [7, 8, 9])


async def looked_at(harness: Any, *engines: FakeEngine) -> None:
    """Return when each has been looked at twice more."""
    looks = [len(one.named("identity")) + 2 for one in engines]
    await harness.eventually(
        lambda: all(len(one.named("identity")) > least for one, least in zip(engines, looks, strict=True))
    )


async def test_an_engine_that_was_given_notice_goes_on_until_another_one_serves(running_pool):
    async with FakeEngine() as last, FakeEngine() as other, running_pool(last, other) as harness:
        other.healthy = False
        harness.pool.announce(policy(0))
        await harness.state(last, "serving")
        last.noticed = True
        await looked_at(harness, last)
        assert (await harness.generate("new")).engine == last.address
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        assert harness.view(last).version == 1, "it is updated as ever"
        other.healthy = True
        await harness.state(last, "draining")
        assert (await harness.generate("newer")).engine == other.address


async def test_engines_that_are_given_notice_at_once_go_on_until_another_one_serves(running_pool):
    async with (
        FakeEngine() as first,
        FakeEngine() as second,
        FakeEngine() as other,
        running_pool(first, second, other) as harness,
    ):
        other.healthy = False
        harness.pool.announce(policy(0))
        for one in (first, second):
            await harness.state(one, "serving")
        for one in (first, second):
            one.noticed = one.draining = True
        await looked_at(harness, first, second)
        for one in (first, second):
            await harness.state(one, "serving")
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        assert (await harness.generate("new")).engine in {first.address, second.address}
        await harness.eventually(lambda: {harness.view(one).version for one in (first, second)} == {1})
        other.healthy = True
        for one in (first, second):
            await harness.state(one, "draining")
        assert (await harness.generate("newer")).engine == other.address


async def test_an_engine_serves_again_when_those_that_stood_in_for_it_are_gone(running_pool):
    async with FakeEngine() as leaving, FakeEngine() as other, running_pool(leaving, other) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        leaving.noticed = True
        await harness.state(leaving, "draining")
        await other.stop()
        await harness.state(leaving, "serving")
        assert (await harness.generate("new")).engine == leaving.address


@pytest.mark.parametrize("failing", [None, "pause"], ids=["done", "failed"])
async def test_a_notice_in_the_midst_of_an_update_holds_after_it(running_pool, failing: str | None):
    async with FakeEngine() as leaving, FakeEngine() as other, running_pool(leaving, other) as harness:
        harness.pool.announce(policy(0))
        await harness.eventually(lambda: harness.pool.metrics_snapshot()["engines"] == 2)
        gate = leaving.hold(failing or "apply")
        if failing is not None:
            leaving.fail(failing)
        harness.pool.announce(policy(1))
        await harness.state(leaving, "updating")
        leaving.noticed = True
        await looked_at(harness, leaving)
        states: list[str] = []
        gate.set()
        await harness.eventually(lambda: bool(states.append(harness.view(leaving).state) or "draining" in states))
        assert set(states) <= {"updating", "draining"}
        assert (await harness.generate("new")).engine == other.address
