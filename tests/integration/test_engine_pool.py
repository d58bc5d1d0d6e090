"""The engine pool against a real vLLM engine: sync, numbers, updates in flight, cancel, quarantine, loss."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from echorl_core.config import (
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    ModelConfig,
    OrchestratorConfig,
    SamplingConfig,
)
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.termination_message import read
from echorl_core.wire.weights import PolicyAnnouncement, Probe
from echorl_orchestrator.codec.engine_rendering import PromptTooLongError
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.engines.generation import ChatGeneration, Generation
from echorl_orchestrator.engines.timing import Timing
from echorl_testing import campaign
from echorl_testing.engines.engine import Engine, running_engine
from echorl_testing.engines.published import publish, published_tensors
from echorl_trainer.seeded import SHAPES, byte_tokenizer, write_seeded_model

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

RUN_UID = "pool-run"
PROBE_IDS = list(range(40, 72))
SILENCE_S = 60.0


class Policies:
    """Published versions 0 and 1 (two seeds of one shape, tied), and what transformers computes with them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[int, str] = {}
        for version in (0, 1):
            write_seeded_model(folder / f"model{version}", SHAPES["tiny"], seed=version + 1, tie=True)
            self.digests[version] = publish(
                folder / f"v{version}",
                published_tensors(folder / f"model{version}"),
                attempt=1,
                version=version,
                run_uid=RUN_UID,
            )

    def logprobs(self, version: int, ids: list[int], temperature: float = 1.0) -> list[float]:
        model = AutoModelForCausalLM.from_pretrained(self.folder / f"model{version}", dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1] / temperature
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])
        return [float(value) for value in chosen[:, 0]]

    def announcement(self, version: int, *, wrong_by: float = 0.0) -> PolicyAnnouncement:
        expected = [value + wrong_by for value in self.logprobs(version, PROBE_IDS)]
        return PolicyAnnouncement(
            attempt=1,
            version=version,
            digest=self.digests[version],
            url=f"file://{self.folder}/v{version}/manifest.json",
            size_bytes=1,
            seconds_gather=0.0,
            probe=Probe(token_ids=PROBE_IDS, logprobs=expected, tolerance=1e-3),
        )


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    return Policies(tmp_path_factory.mktemp("policies"))


@pytest.fixture(scope="module")
def engine(policies: Policies, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    # Without an end-of-sequence token every completion has the length that a test asks for.
    for file, key in (("tokenizer_config.json", "eos_token"), ("config.json", "eos_token_id")):
        path = policies.folder / "model0" / file
        path.write_text(json.dumps({**json.loads(path.read_text()), key: None}))
    for path in (policies.folder / "model0").glob("generation_config.json"):
        path.unlink()
    with running_engine(policies.folder / "model0", tmp_path_factory.mktemp("engine"), run_uid=RUN_UID) as running:
        yield running


class Pool:
    def __init__(self, pool: EnginePool, updates: list[dict[str, Any]]) -> None:
        self.pool, self.updates = pool, updates

    def call(self, episode: str, tokens: int, temperature: float = 1.0) -> asyncio.Task[Generation]:
        return asyncio.create_task(
            self.pool.generate(
                episode=episode,
                prompt_ids=[10, 20, 30],
                sampling=SamplingConfig(temperature=temperature),
                max_tokens=tokens,
                stop_ids=[],
            )
        )

    async def running_calls(self, number: int, tokens: int) -> list[asyncio.Task[Generation]]:
        """Calls that the engine works on. Where it has ended some before they were seen, all are made anew."""
        async with asyncio.timeout(180):
            while True:
                calls = [self.call(f"e{i}", tokens) for i in range(number)]
                while not any(call.done() for call in calls):
                    if self.pool.metrics_snapshot()["running"] == number:
                        return calls
                    await asyncio.sleep(0.02)
                await asyncio.gather(*calls)

    async def idle(self) -> None:
        async with asyncio.timeout(60):
            while self.pool.metrics_snapshot()["running"]:  # noqa: ASYNC110 - polled outside
                await asyncio.sleep(0.02)

    def state(self) -> str:
        return str(self.pool.views()[0].state)

    async def reaches(self, state: str, seconds: float = 120) -> None:
        async with asyncio.timeout(seconds):
            while not self.pool.views() or self.state() != state:  # noqa: ASYNC110 - views have no event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def pool_on(*engines: Engine) -> AsyncIterator[Pool]:
    updates: list[dict[str, Any]] = []
    config = OrchestratorConfig(
        run_dir="run",
        port=1,
        model=ModelConfig(path=str(engines[0].model), dtype="float32", max_model_len=1024, renderer="plain"),
        seed=0,
        max_steps=1,
        batch=BatchConfig(group_size=1, batch_size=1, max_staleness=1, seq_len=64, num_ranks=1),
        train=[],
        engines=EngineDiscovery(names=[engine.url.removeprefix("http://") for engine in engines], interval_s=0.5),
        weight_mode="http",
        checkpoint=CheckpointConfig(interval=1, keep_last=1),
        update_deadline_s=60.0,
    )
    identity = RunIdentity("run", RUN_UID, 1)
    timing = Timing(metrics_s=0.1, silence_s=SILENCE_S)
    pool = EnginePool(config, identity, engines[0].token, on_update=updates.append, timing=timing)
    await pool.start()
    forever = asyncio.create_task(pool.run_forever())
    try:
        yield Pool(pool, updates)
        assert not forever.done(), forever
    finally:
        forever.cancel()
        await pool.close()


async def test_engine_is_synced_before_traffic_and_its_numbers_are_transformers(engine: Engine, policies: Policies):
    async with pool_on(engine) as pool:
        early = pool.call("early", 16, temperature=0.7)
        await pool.reaches("syncing")
        assert pool.pool.version_for_dispatch() == -1
        pool.pool.announce(policies.announcement(0))
        generation = await early
        assert (generation.version_low, generation.version_high, generation.finish_reason) == (0, 0, "length")
        expected = policies.logprobs(0, [10, 20, 30, *generation.token_ids], temperature=0.7)[2:]
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
        (update,) = pool.updates
        assert update["max_probe_error"] < 1e-3
        held_out = list(range(60, 100))
        found = await pool.pool.prompt_logprobs(token_ids=held_out)
        assert found == pytest.approx(policies.logprobs(0, held_out), abs=1e-4)


async def test_chat_is_rendered_by_the_engine_and_its_numbers_are_transformers(engine: Engine, policies: Policies):
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "cat", "parameters": schema, "strict": True}}
    made = {"id": "call_1", "type": "function", "function": {"name": "cat", "arguments": {"path": "etc/a"}}}
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "port?"},
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "call_1", "name": "cat", "content": "port=fern"},
    ]
    tokenizer = byte_tokenizer()
    async with pool_on(engine) as pool:
        pool.pool.announce(policies.announcement(0))
        await pool.pool.wait_served(0, 180)

        async def chat(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ChatGeneration:
            return await pool.pool.chat(
                episode="chat", messages=messages, tools=tools, sampling=SamplingConfig(temperature=0.7), max_tokens=16
            )

        answer = await chat(talk, [tool])
        ids = answer.generation.token_ids
        expected = policies.logprobs(0, [*answer.prompt_ids, *ids], temperature=0.7)[len(answer.prompt_ids) - 1 :]
        assert answer.generation.logprobs == pytest.approx(expected, abs=1e-4)
        assert (len(ids), answer.generation.finish_reason) == (16, "length")
        count = await pool.pool.count_tokens(episode="chat", messages=talk, tools=[tool])
        assert count == len(answer.prompt_ids)
        prompt = tokenizer.decode(answer.prompt_ids)
        assert '{"name": "cat", "arguments": {"path": "etc/a"}}' in prompt
        assert "<tool_response>\nport=fern\n</tool_response>" in prompt
        # Random bytes are rarely UTF-8, and the engine keeps the first bytes of an unfinished character back.
        texts = answer.message["content"], tokenizer.decode(ids)
        content, decoded = (text.encode("ascii", errors="ignore") for text in texts)
        assert content == decoded

        room = 1024 - len((await chat([{"role": "user", "content": ""}], [])).prompt_ids)
        last = await chat([{"role": "user", "content": "x" * (room - 1)}], [])
        assert (len(last.prompt_ids), len(last.generation.token_ids)) == (1023, 1)
        for length in (room, room + 1, 20_000):
            with pytest.raises(PromptTooLongError):
                await chat([{"role": "user", "content": "x" * length}], [])
        long: list[dict[str, Any]] = [{"role": "user", "content": "x" * 20_000}]
        assert await pool.pool.count_tokens(episode="chat", messages=long, tools=[]) == 1024 - room + 20_000


async def generations_through_an_update(engine: Engine, policies: Policies) -> tuple[list[Generation], dict[str, Any]]:
    """Eight calls that began on version 0, and the update to version 1 that came in between."""
    announcements = [policies.announcement(version) for version in (0, 1)]
    async with pool_on(engine) as pool:
        pool.pool.announce(announcements[0])
        await pool.pool.wait_served(0, 180)
        calls = await pool.running_calls(8, 900)
        pool.pool.announce(announcements[1])
        await pool.pool.wait_served(1, 180)
        return await asyncio.gather(*calls), pool.updates[-1]


async def test_requests_in_flight_outlive_an_update(engine: Engine, policies: Policies):
    generations, update = await generations_through_an_update(engine, policies)
    for _ in range(3):
        # On a busy machine the engine may be through with a call before the update comes, and that unheard.
        if update["running_at_pause"] < 8 or any(generation.version_high == 0 for generation in generations):
            generations, update = await generations_through_an_update(engine, policies)
    assert update["running_at_pause"] == 8
    assert update["pause_s"] < 10
    for generation in generations:
        assert (generation.version_low, generation.version_high) == (0, 1)
        ids = [10, 20, 30, *generation.token_ids]
        old, new = (policies.logprobs(version, ids)[2:] for version in (0, 1))
        # The first tokens are the old version's, the last the new one's: its KV cache was computed anew.
        assert generation.logprobs[:8] == pytest.approx(old[:8], abs=1e-3)
        assert generation.logprobs[-8:] == pytest.approx(new[-8:], abs=1e-3)


async def test_cancelled_call_is_aborted_on_the_engine(engine: Engine, policies: Policies):
    async with pool_on(engine) as pool:
        pool.pool.announce(policies.announcement(1))
        await pool.pool.wait_served(1, 180)
        calls = await pool.running_calls(4, 1000)
        for call in calls:
            call.cancel()
        await pool.idle()
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*calls, return_exceptions=True)
        )


async def test_wrong_probe_quarantines_until_a_version_is_right(engine: Engine, policies: Policies):
    async with pool_on(engine) as pool:
        pool.pool.announce(policies.announcement(0, wrong_by=0.5))
        await pool.reaches("quarantined")
        assert "differ from the trainer's by 0.5" in str(pool.pool.views()[0].error)
        pool.pool.announce(policies.announcement(1))
        await pool.pool.wait_served(1, 180)


@campaign.ALL
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "given notice"])
async def test_greedy_turns_are_the_same_across_an_end(
    engine: Engine, policies: Policies, tmp_path: Path, number: signal.Signals
):
    # Seven seconds: so few that the turn does not end in them.
    variables = {"ECHORL_GRACE_S": "7", "ECHORL_TERMINATION_LOG": str(tmp_path / "words")}
    with running_engine(
        policies.folder / "model0", tmp_path, run_uid=RUN_UID, token=engine.token, variables=variables
    ) as other:
        async with pool_on(engine, other) as pool:
            pool.pool.announce(policies.announcement(1))
            await pool.pool.wait_served(1, 180)
            async with asyncio.timeout(180):
                while pool.pool.metrics_snapshot()["engines"] < 2:  # noqa: ASYNC110 - snapshots have no event
                    await asyncio.sleep(0.02)
            whole = {name: await pool.call(name, 900, temperature=0.0) for name in ("a", "b")}
            homes = {made.engine: name for name, made in whole.items()}
            assert len(homes) == 2
            doomed = homes[other.url.removeprefix("http://")]
            before = pool.pool.metrics_snapshot()["generation_tokens_total"]
            call = pool.call(doomed, 900, temperature=0.0)
            async with asyncio.timeout(180):
                while pool.pool.metrics_snapshot()["generation_tokens_total"] < before + 100:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            os.kill(other.process.pid, number)
            made = await call
        if number is signal.SIGTERM:
            assert await asyncio.to_thread(other.wait_until_gone) == ExitCode.NOTICE
            words = read((tmp_path / "words").read_bytes())
            assert words is not None
            assert words.message == "given notice: 1 requests go on elsewhere"
    assert [part.engine for part in made.segments] == [whole[doomed].engine, engine.url.removeprefix("http://")]
    assert len(made.segments[0].token_ids) >= 64
    assert (made.token_ids, made.finish_reason) == (whole[doomed].token_ids, "length")
    assert whole[doomed].logprobs == pytest.approx(made.logprobs, abs=1e-3)


async def test_killed_engine_is_lost_within_seconds(engine: Engine, policies: Policies):
    async with pool_on(engine) as pool:
        pool.pool.announce(policies.announcement(1))
        await pool.pool.wait_served(1, 180)
        (call,) = await pool.running_calls(1, 1000)
        os.killpg(engine.process.pid, signal.SIGKILL)
        # A silent one, which this is not, would count as lost only after the pool's ``silence_s``.
        await pool.reaches("lost", SILENCE_S / 2)
        assert not call.done()
        call.cancel()
