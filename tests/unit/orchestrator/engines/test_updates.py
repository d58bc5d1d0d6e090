"""Weight updates against an engine at the wire: order, lease, failures, and what other engines notice of them."""

import asyncio

import pytest
from aiohttp import web

from echorl_core.faults import InjectedFault
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.engines.fake_engine import FakeEngine, policy

STEPS = ("stage", "stage_status", "pause", "apply", "resume", "completions")


async def test_update_goes_through_its_steps_in_order(running_pool):
    async with FakeEngine(workers=2) as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        assert engine.named(*STEPS) == list(STEPS)
        assert engine.bodies("apply") == [{"attempt": 1, "version": 0, "digest": "digest-1-0"}]
        assert engine.bodies("pause") == [{"lease_s": 30.0}]
        assert engine.bodies("stage")[0]["url"] == policy(0).url
        (update,) = harness.updates
        assert update["engine"] == engine.address
        assert (update["attempt"], update["version"], update["running_at_pause"]) == (1, 0, 0)
        assert (update["received_bytes"], update["delta"]) == (30, "used")
        assert update["pause_s"] >= update["apply_s"] > 0
        assert update["max_probe_error"] == pytest.approx(0, abs=1e-9)
        assert harness.view(engine).version == 0


async def test_generation_goes_on_while_a_version_is_staged_and_freezes_only_then(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate = engine.hold("stage_status")
        harness.pool.announce(policy(1))
        await engine.until(lambda: engine.named("stage_status").count("stage_status") >= 2)
        assert harness.view(engine).state == "serving"
        generation = await harness.generate()
        assert (generation.version_low, generation.version_high) == (0, 0)
        gate.set()
        await harness.pool.wait_served(1, 60)


async def test_a_version_that_is_put_in_place_needs_no_pause(running_pool):
    async with FakeEngine(workers=2) as engine, running_pool(engine) as harness:
        engine.in_place = True
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        assert engine.named(*STEPS) == ["stage", "stage_status", "apply", "completions"]
        (update,) = harness.updates
        assert update["pause_s"] == 0.1  # what the workers say


async def test_an_engine_that_refuses_to_put_a_version_in_place_serves_on_and_one_that_fails_does_not(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.in_place = True
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.fail("apply", 409)
        harness.pool.announce(policy(1))
        await engine.until(lambda: engine.named("apply", "abort")[-1] == "abort")
        assert harness.view(engine).state == "serving"
        await harness.pool.wait_served(1, 60)
        engine.fail("apply", 502)
        harness.pool.announce(policy(2))
        await harness.state(engine, "quarantined")
        await harness.pool.wait_served(2, 60)


async def test_running_request_survives_an_update_and_carries_both_versions(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate = engine.hold("generate")
        call = harness.call()
        await engine.until(lambda: len(engine.running) == 1)
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        assert not call.done()
        gate.set()
        generation = await call
        assert (generation.version_low, generation.version_high) == (0, 1)
        assert harness.updates[-1]["running_at_pause"] == 1


async def test_new_requests_wait_until_the_update_is_over(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        await harness.generate("sticky")
        gate = engine.hold("apply")
        harness.pool.announce(policy(1))
        await engine.until(lambda: "apply" in engine.named()[-1:] or engine.named().count("apply") == 2)
        assert harness.pool.served() == (0, 0)
        calls = [harness.call("sticky"), harness.call("new")]
        await engine.until(lambda: engine.named().count("identity") > 5)
        assert engine.named("generate") == ["generate"]
        gate.set()
        assert [generation.version_low for generation in await asyncio.gather(*calls)] == [1, 1]


async def test_lease_is_renewed_while_an_apply_takes_long(running_pool):
    async with FakeEngine() as engine, running_pool(engine, lease_s=3.0) as harness:
        gate = engine.hold("apply")
        harness.pool.announce(policy(0))
        # As many as no single lease would last for.
        await engine.until(lambda: engine.named().count("pause") >= 5)
        gate.set()
        await harness.pool.wait_served(0, 60)
        assert not engine.lease_lost
        assert engine.named("pause", "resume")[-1] == "resume"


async def test_failed_apply_is_followed_by_a_resume_and_another_try(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        engine.fail("apply", 500)
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        assert engine.named("pause", "apply", "resume") == ["pause", "apply", "resume"] * 2


async def test_worker_that_reports_another_version_is_not_believed(running_pool):
    async with FakeEngine(workers=2) as engine, running_pool(engine) as harness:
        right = {"attempt": 1, "version": 0, "digest": "digest-1-0", "seconds": 0.1}
        for workers in ([right, {**right, "version": 9}], [right, {**right, "digest": "other"}], []):
            engine.answers["apply"].append(web.json_response({"workers": workers}))
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        assert engine.named("apply", "resume") == ["apply", "resume"] * 4
        assert engine.named("completions") == ["completions"]


async def test_refused_apply_leaves_the_engine_at_its_old_version_with_its_requests(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate = engine.hold("generate")
        call = harness.call()
        await engine.until(lambda: len(engine.running) == 1)
        engine.fail("apply", 409)
        harness.pool.announce(policy(1))
        await harness.pool.wait_served(1, 60)
        gate.set()
        assert (await call).version_high == 1


async def test_engine_that_cannot_stage_is_quarantined_with_the_reason_and_comes_back(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.stage_error = "disk is full"
        harness.pool.announce(policy(1))
        await harness.state(engine, "quarantined")
        assert "disk is full" in harness.view(engine).error
        assert harness.pool.version_for_dispatch() == -1
        engine.stage_error = None
        await harness.pool.wait_served(1, 60)
        assert harness.view(engine).error is None


async def test_deleted_version_gives_way_to_the_newest(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        engine.stage_error = "HTTP 404: version 1 is no longer kept"
        harness.pool.announce(policy(1))
        await engine.until(lambda: engine.named("abort") != [])
        engine.stage_error = None
        harness.pool.announce(policy(2))
        await harness.pool.wait_served(2, 60)
        assert 1 not in [body["version"] for body in engine.bodies("apply")]


async def test_one_hanging_engine_does_not_delay_another(running_pool):
    async with FakeEngine() as slow, FakeEngine() as quick, running_pool(slow, quick) as harness:
        gate = slow.hold("apply")
        harness.pool.announce(policy(0))
        await harness.state(quick, "serving")
        harness.pool.announce(policy(1))
        await harness.eventually(lambda: harness.view(quick).version == 1)
        assert (await harness.generate()).version_low == 1
        assert harness.view(slow).state == "syncing"
        assert slow.named("apply") == ["apply"]
        gate.set()
        await harness.eventually(lambda: harness.pool.served() == (1, 1) and harness.view(slow).state == "serving")
        assert (await harness.generate("other")).version_low == 1


async def test_probe_mismatch_quarantines_and_drops_what_was_sampled_since(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(0))
        await harness.pool.wait_served(0, 60)
        gate, probe_gate = engine.hold("generate"), engine.hold("completions")
        call = harness.call()
        await engine.until(lambda: len(engine.running) == 1)
        engine.wrong_by = 0.5
        harness.pool.announce(policy(1))
        await engine.until(lambda: engine.named("completions") == ["completions"] * 2)
        # The answer comes after the resume and before the probe's verdict.
        gate.set()
        await engine.until(lambda: not engine.running)
        assert not call.done()
        probe_gate.set()
        with pytest.raises(EpisodeError, match=r"differ from the trainer's by 0\.5") as caught:
            await call
        assert caught.value.kind is ErrorKind.PROVIDER
        await engine.until(lambda: "abort_requests" in engine.named())
        assert harness.pool.served() is None
        engine.wrong_by = 0.0
        await harness.pool.wait_served(1, 60)
        assert [body["version"] for body in engine.bodies("apply")][-1] == 1


async def test_versions_are_monotone_and_other_attempts_are_refused(running_pool):
    async with FakeEngine() as engine, running_pool(engine) as harness:
        harness.pool.announce(policy(3))
        harness.pool.announce(policy(2))
        await harness.pool.wait_served(3, 60)
        harness.pool.announce(policy(1))
        harness.pool.announce(policy(5))
        await harness.pool.wait_served(5, 60)
        assert [body["version"] for body in engine.bodies("apply")] == [3, 5]
        with pytest.raises(ValueError, match="policy of attempt 2; this is attempt 1"):
            harness.pool.announce(policy(6, attempt=2))


async def test_engine_of_an_older_attempt_loses_its_requests_and_goes_to_a_lower_version(running_pool):
    async with FakeEngine() as engine:
        engine.held = {"attempt": 1, "version": 130, "digest": "digest-1-130"}
        async with running_pool(engine, attempt=2) as harness:
            harness.pool.announce(policy(120, attempt=2))
            await harness.pool.wait_served(120, 60)
            steps = engine.named("abort_requests", "stage", "apply")
            assert steps == ["abort_requests", "stage", "apply"]
            assert harness.pool.served() == (120, 120)


async def test_engine_that_holds_the_version_already_is_only_probed(running_pool):
    async with FakeEngine() as engine:
        engine.held = {"attempt": 1, "version": 4, "digest": "digest-1-4"}
        async with running_pool(engine) as harness:
            harness.pool.announce(policy(4))
            await harness.pool.wait_served(4, 60)
            assert engine.named(*STEPS) == ["completions"]


async def test_close_in_the_middle_of_an_update_resumes_the_engine(running_pool):
    async with FakeEngine() as engine:
        async with running_pool(engine) as harness:
            engine.hold("apply")
            harness.pool.announce(policy(0))
            await engine.until(lambda: "apply" in engine.named())
        assert engine.named("pause", "apply", "resume") == ["pause", "apply", "resume"]
        assert not engine.paused


async def test_failure_in_the_updater_ends_run_forever(running_pool, monkeypatch):
    monkeypatch.setenv("ECHORL_FAULTS", "orchestrator.paused=raise")
    async with FakeEngine() as engine, running_pool(engine, fails=True) as harness:
        harness.pool.announce(policy(0))
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.wait_for(harness.forever, 60)
        assert caught.group_contains(InjectedFault)
        assert engine.named("pause", "resume") == ["pause", "resume"]
