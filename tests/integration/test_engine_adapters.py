"""Adapters of a real vLLM engine, hot-swapped in place and compared with the trainer that made them, in float32."""

import asyncio

import aiohttp
import pytest
import torch

from echorl_core.config import LoraConfig, OptimizerConfig, SpeculativeConfig
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_testing import campaign
from echorl_testing.engines.adapter_engine import AdapterClient
from echorl_testing.engines.engine import running_engine
from echorl_testing.local.local_run import longer_run
from echorl_testing.trainer.tiny_learner import alone, tiny_learner, train
from echorl_trainer.health import Watch
from echorl_trainer.probe import probe_logprobs
from echorl_trainer.publish import Publisher
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.weights import disk_store

pytestmark = [pytest.mark.vllm, longer_run("adapters"), pytest.mark.timeout(900)]

RUN = "test-run"
PROBE = [7, 1, 200, 33, 64, 91, 258, 5, 17, 120]
TOLERANCE = 1e-4
LENGTH = 300
"""Tokens of a request that is to be in flight for a while."""
# One name of all layers, and one layer by its whole name.
LORA = LoraConfig(rank=4, alpha=32.0, target_modules=["q_proj", "down_proj", "model.layers.1.self_attn.v_proj"])
FAST = OptimizerConfig(lr=3e-3)
NGRAM = SpeculativeConfig(method="ngram", num_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3)


class Trained:
    """A learner, and the versions that it has published."""

    def __init__(self, learner, ranks, folder, lora):
        self.learner, self.ranks = learner, ranks
        store = disk_store(RunDirectory(folder / f"run-{lora.rank}-{len(lora.target_modules)}"), 1)
        self.publisher = Publisher(
            learner.state.policy,
            ranks,
            RunIdentity("test", RUN, 1),
            probe_token_ids=PROBE,
            store=store,
            watch=Watch(),
        )
        self.version = -1

    def publish(self):
        """The next version: version 0 as the learner starts, then one step each."""
        self.version += 1
        if self.version:
            train(self.learner, self.version, self.version)
        return self.publisher.begin(self.version).result()

    def logprobs(self, tokens):
        """Of tokens 1.. under the newest version."""
        return torch.tensor(probe_logprobs(self.learner.state.policy, self.ranks, tokens), dtype=torch.float32)


@pytest.fixture(scope="module")
def ranks():
    with alone() as ranks:
        yield ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    write_seeded_model(folder / "model", SHAPES["tiny"], 1)
    return folder


@pytest.fixture(scope="module", params=["plain", pytest.param("guessing", marks=campaign.ALL)])
def engine(request, folder):
    work, speculative = folder / f"engine-{request.param}", NGRAM if request.param == "guessing" else None
    with running_engine(folder / "model", work, run_uid=RUN, lora=LORA, speculative=speculative) as engine:
        yield engine


@pytest.fixture(scope="module")
def trained(engine, ranks, folder):
    learner = tiny_learner(ranks, folder / "model", lora=LORA, optimizer=FAST)
    return Trained(learner, ranks, engine.work.parent, LORA)


@pytest.fixture
async def client(engine):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
        yield AdapterClient(session, engine)


async def agrees(client, trained, model="policy"):
    """Largest difference between engine and trainer over a prompt and over what the engine samples after it."""
    prompt = await client.prompt_logprobs(model, PROBE)
    ids, sampled = await client.sample(model, PROBE, 24)
    expected = trained.logprobs(PROBE + ids)
    return float((torch.cat([prompt, sampled]) - expected).abs().max())


async def test_nothing_is_served_before_the_first_adapter(client):
    for model in ("policy", "base"):
        body = {"model": model, "prompt": PROBE, "max_tokens": 1}
        await client.ask("POST", "/v1/completions", body, status=409)


async def test_every_swap_takes_effect_and_the_base_stays(client, trained, ranks, folder):
    policy = trained.publish()
    assert policy.kind == "adapter"
    await client.update(policy)
    base = trained.logprobs(PROBE)
    torch.testing.assert_close(await client.prompt_logprobs("policy", PROBE), base, rtol=0, atol=TOLERANCE)
    before = base
    for _ in range(5):
        await client.update(trained.publish())
        now = await client.prompt_logprobs("policy", PROBE)
        # Far beyond the tolerance, so a swap without effect would be seen.
        assert float((now - before).abs().max()) > 100 * TOLERANCE
        assert await agrees(client, trained) < TOLERANCE
        torch.testing.assert_close(await client.prompt_logprobs("base", PROBE), base, rtol=0, atol=TOLERANCE)
        before = now
    identity = await client.ask("GET", "/echorl/identity")
    assert (identity["version"], identity["ready"]) == (5, True)


async def test_adapter_and_base_share_a_batch(client, trained):
    if trained.version < 1:
        await client.update(trained.publish())
        await client.update(trained.publish())
    base = await client.prompt_logprobs("base", PROBE)
    asked = [client.prompt_logprobs(model, PROBE) for model in ("policy", "base") * 8]
    answers = await asyncio.gather(*asked)
    for adapter, plain in zip(answers[::2], answers[1::2], strict=True):
        torch.testing.assert_close(adapter, trained.logprobs(PROBE), rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(plain, base, rtol=0, atol=TOLERANCE)


async def through_an_update(client, policy, prompts):
    """Samples for the prompts, and one of the base after PROBE, all of which an update came upon; Nones if not all."""
    running = [asyncio.create_task(client.sample("policy", prompt, LENGTH)) for prompt in prompts]
    running.append(asyncio.create_task(client.sample("base", PROBE, LENGTH)))
    async with asyncio.timeout(120):
        while not any(task.done() for task in running):
            if await client.at_work() == len(running):
                break
            await asyncio.sleep(0.01)
    frozen = await client.update(policy)
    samples = await asyncio.gather(*running)
    # On a busy machine the engine may be through with a request before the update comes.
    return samples if frozen == len(running) else [None] * len(running)


async def test_requests_in_flight_go_on_under_the_new_adapter(client, trained):
    if trained.version < 0:
        await client.update(trained.publish())
    prompts = [[*PROBE, number] for number in range(4)]
    for _ in range(6):
        # Made before the requests: the engine does not wait for a step of the trainer.
        policy = trained.publish()
        *samples, base = await through_an_update(client, policy, prompts)
        if base is not None:
            break
    assert base is not None, "the engine was through with a request before the update, each time"
    for prompt, (ids, logprobs) in zip(prompts, samples, strict=True):
        new = (logprobs - trained.logprobs(prompt + ids)[len(prompt) - 1 :]).abs() < TOLERANCE
        # The old adapter until the pause, the new one, over a recomputed cache, from then on.
        assert 0 < int(new.flip(0).long().cumprod(0).sum()) < LENGTH
    ids, logprobs = base
    expected = await client.prompt_logprobs("base", PROBE + ids)
    torch.testing.assert_close(logprobs, expected[len(PROBE) - 1 :], rtol=0, atol=TOLERANCE)


async def test_adapters_of_another_form_are_refused_and_the_old_one_serves_on(client, engine, trained, ranks, folder):
    if trained.version < 0:
        await client.update(trained.publish())
    assert await agrees(client, trained) < TOLERANCE
    others = {
        "shape": LORA.model_copy(update={"rank": 8}),
        "tensors missing": LORA.model_copy(update={"target_modules": ["q_proj"]}),
        "does not have": LORA.model_copy(update={"target_modules": [*LORA.target_modules, "o_proj"]}),
        "lora_alpha is 8": LORA.model_copy(update={"alpha": 8.0}),
    }
    for message, lora in others.items():
        other = Trained(tiny_learner(ranks, folder / "model", lora=lora), ranks, engine.work.parent / message, lora)
        policy = other.publish()
        worker = await client.staged(policy)
        assert worker["state"] == "failed"
        assert message in worker["error"]
    full = Trained(tiny_learner(ranks, folder / "model"), ranks, engine.work.parent / "full", LORA).publish()
    assert "kind is 'full', this engine takes 'adapter'" in (await client.staged(full))["error"]
    assert await agrees(client, trained) < TOLERANCE
