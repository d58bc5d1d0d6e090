"""Weight updates of a real vLLM engine, checked against transformers in float32.

Engines one after the other: an untied model and, in the campaign, a tied one, mixtures of experts, models with
sliding windows, and an untied model with speculative decoding; the pool's engine has another one.
"""

import asyncio
import json
import logging
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest
import torch
from aiohttp import web
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from echorl_core.config import ModelConfig, SpeculativeConfig
from echorl_orchestrator.engines.engine_metrics import parse
from echorl_testing import campaign
from echorl_testing.engines.engine import running_engine
from echorl_testing.engines.published import add_delta, publish, published_tensors
from echorl_testing.orchestrator.packs import packed, whole_policy
from echorl_trainer.seeded import SHAPES, write_seeded_model

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

RUN = "test-run"
PROBE = [7, 1, 200, 33, 64, 91, 258, 5, 17, 120]
TOLERANCE = 1e-4
UNTIED = pytest.mark.parametrize("setting", ["untied"], indirect=True)
OF_TIED = pytest.param("tied", marks=campaign.ALL)
TIED = pytest.mark.parametrize("setting", [OF_TIED], indirect=True)
OF_EXPERTS = [pytest.param(kind, marks=campaign.ALL) for kind in ("experts", "glm4_moe")]
GUESSING = pytest.param("guessing", marks=campaign.ALL)
BOTH = pytest.mark.parametrize("setting", ["untied", OF_TIED], indirect=True)
OF_WINDOWS = [pytest.param(family, marks=campaign.ALL) for family in ("gemma2", "gemma3_text", "mistral")]
GUESSES = pytest.mark.parametrize("setting", [GUESSING], indirect=True)
EACH = pytest.mark.parametrize("setting", ["untied", OF_TIED, *OF_EXPERTS, *OF_WINDOWS, GUESSING], indirect=True)
WINDOWS = pytest.mark.parametrize("setting", OF_WINDOWS, indirect=True)
# Weights of a size that softcaps change what is scored.
LOUD = replace(SHAPES["tiny"], initializer_range=0.2)
NGRAM = SpeculativeConfig(method="ngram", num_tokens=4, prompt_lookup_min=1, prompt_lookup_max=3)


class Setting:
    """An engine, and the models that are published to it."""

    def __init__(self, engine, folder, kind, *, repeats):
        self.engine, self.folder, self.kind, self.repeats = engine, folder, kind, repeats
        self.version = 0
        self.pauses = []
        self._models = {}

    def model(self, seed):
        """Folder of the model of a seed."""
        folder = self.folder / f"seed-{seed}"
        if not folder.exists():
            write_seeded_model(folder, seed=seed, **self.kind)
            if self.repeats:
                make_repetitive(folder)
        return folder

    def distributions(self, seed, tokens):
        """Natural-log probabilities of the whole vocabulary for tokens 1.. under the model of a seed."""
        if seed not in self._models:
            # In eager mode, as others know no softcap.
            options = {"dtype": torch.float32, "attn_implementation": "eager"}
            self._models[seed] = AutoModelForCausalLM.from_pretrained(self.model(seed), **options).eval()
        with torch.no_grad():
            return self._models[seed](torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)

    def logprobs(self, seed, tokens, first=1):
        """Natural-log probabilities of tokens ``first``.. under the model of a seed, by transformers."""
        picked = self.distributions(seed, tokens).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        return picked[first - 1 :]


def make_repetitive(folder):
    """Have a token follow from the last one above all, and surely, so that what followed it before follows it again."""
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("o_proj.weight"):
            tensor.mul_(0.1)
    tensors["lm_head.weight"].mul_(3)
    save_file(tensors, file, {"format": "pt"})


@pytest.fixture(scope="module")
def setting(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tie = request.param in {"tied", "gemma2", "gemma3_text"}
    guessing = request.param == "guessing"
    families = {"untied": "qwen3", "tied": "qwen3", "guessing": "qwen3", "experts": "qwen3_moe"}
    family = families.get(request.param, request.param)
    shape = SHAPES["tiny"] if family.startswith("qwen3") and not guessing else LOUD
    kind = {"shape": shape, "tie": tie, "family": family}
    write_seeded_model(folder / "start", seed=1, **kind)
    # The third update of the tied engine fails half-way: each passes this point once a tensor.
    per_update = len(published_tensors(folder / "start"))
    faults = {"ECHORL_FAULTS": f"engine.mid_apply@{2 * per_update + 7}=raise"} if request.param == "tied" else {}
    options = {"variables": faults, "speculative": NGRAM if guessing else None}
    with running_engine(folder / "start", folder / "engine", run_uid=RUN, **options) as engine:
        found = Setting(engine, folder, kind, repeats=guessing)
        yield found
        if found.pauses:
            log.info("%s: pauses of %s ms", request.param, [round(1000 * one) for one in found.pauses])


@dataclass
class Client:
    """HTTP to one engine."""

    session: aiohttp.ClientSession
    setting: Setting
    weights_url: str

    async def ask(self, method, path, body=None, *, status=200, token=True):
        """Decoded answer, which must have this status."""
        headers = {"X-EchoRL-Token": self.setting.engine.token} if token else {}
        async with self.session.request(
            method, self.setting.engine.url + path, json=body, headers={**headers, "X-EchoRL-Run": RUN}
        ) as response:
            answer = json.loads(await response.text() or "null")
            assert response.status == status, answer
            return answer

    async def metrics(self):
        """The engine's metrics, by our names."""
        async with self.session.get(f"{self.setting.engine.url}/metrics") as response:
            return parse(await response.text())

    async def at_work(self):
        """How many requests the engine has scheduled: each has its first token by the end of the step."""
        return int((await self.metrics()).get("running", 0))

    def publish(self, seed, *, mode="file", change=None, version=None):
        """Publish the model of a seed as the next version; returns the body of a stage call."""
        setting = self.setting
        setting.version = version or setting.version + 1
        folder = setting.folder / "weights" / f"v{setting.version}"
        tensors = published_tensors(setting.model(seed))
        if change is not None:
            change(tensors)
        digest = publish(folder, tensors, attempt=1, version=setting.version, run_uid=RUN)
        url = f"file://{folder}" if mode == "file" else f"{self.weights_url}/v{setting.version}"
        return {
            "attempt": 1,
            "version": setting.version,
            "url": f"{url}/manifest.json",
            "digest": digest,
            "deadline_s": 120,
        }

    async def staged(self, body):
        """Stage and wait for the end of it; returns the only worker's status."""
        await self.ask("POST", "/echorl/stage", body)
        began = time.monotonic()
        (worker,) = (await self.ask("GET", "/echorl/stage?wait=60"))["workers"]
        assert worker["state"] != "staging", "the engine noticed nothing"
        # Asked again at the end of its wait, it would know as well.
        assert time.monotonic() - began < 60
        return worker

    async def update(self, seed, *, mode="file"):
        """The whole update to the model of a seed; see ``update_to``."""
        return await self.update_to(self.publish(seed, mode=mode))

    async def update_to(self, body):
        """The whole update to what was published; notes how long generation stood still.

        Returns how many requests were in flight meanwhile.
        """
        worker = await self.staged(body)
        assert (worker["state"], worker["error"]) == ("staged", None)
        policy = {key: body[key] for key in ("attempt", "version", "digest")}
        began = time.monotonic()
        await self.ask("POST", "/echorl/pause", {"lease_s": 60})
        running = (await self.ask("GET", "/echorl/identity"))["running"]
        (applied,) = (await self.ask("POST", "/echorl/apply", policy))["workers"]
        await self.ask("POST", "/echorl/resume")
        self.setting.pauses.append(time.monotonic() - began)
        assert applied.items() >= policy.items()
        identity = await self.ask("GET", "/echorl/identity")
        assert identity.items() >= policy.items()
        return running

    async def prompt_logprobs(self, tokens):
        """The engine's logprobs of tokens 1.. of a prompt."""
        body = {"model": "policy", "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        (choice,) = (await self.ask("POST", "/v1/completions", body, token=False))["choices"]
        pairs = zip(tokens[1:], choice["prompt_logprobs"][1:], strict=True)
        return torch.tensor([one[str(token)]["logprob"] for token, one in pairs])

    async def sample(self, prompt, length, temperature=1.0, **more):
        """Sampled ids and logprobs from the token route."""
        # No min_tokens: it takes the stop tokens out of the distribution.
        sampling = {"max_tokens": length, "temperature": temperature, "logprobs": 0, "ignore_eos": True, **more}
        answer = await self.ask(
            "POST",
            "/inference/v1/generate",
            {"model": "policy", "token_ids": prompt, "sampling_params": sampling},
            token=False,
        )
        (choice,) = answer["choices"]
        return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]

    async def holds(self, seed):
        """Whether the engine computes with the model of a seed: logprobs of a probe and of a fresh sample."""
        probe = await self.prompt_logprobs(PROBE)
        ids, logprobs = await self.sample(PROBE, 24)
        expected = torch.cat([self.setting.logprobs(seed, PROBE), self.setting.logprobs(seed, PROBE + ids, len(PROBE))])
        return float((torch.cat([probe, torch.tensor(logprobs)]) - expected).abs().max()) < TOLERANCE


@pytest.fixture
async def client(setting):
    app = web.Application()
    (setting.folder / "weights").mkdir(exist_ok=True)
    app.router.add_static("/", setting.folder / "weights")
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
        yield Client(session, setting, f"http://127.0.0.1:{runner.addresses[0][1]}")
    await runner.cleanup()


@BOTH
async def test_nothing_is_generated_before_the_first_update(client):
    chat = {"model": "policy", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    await client.ask("POST", "/v1/chat/completions", chat, status=409, token=False)
    await client.ask("POST", "/inference/v1/generate", {}, status=409, token=False)
    await client.ask("POST", "/collective_rpc", {"method": "echorl_status"}, status=403, token=False)
    await client.ask("POST", "/v1/load_lora_adapter", {}, status=403, token=False)
    identity = await client.ask("GET", "/echorl/identity")
    assert identity["version"] is None
    assert not identity["ready"]


@EACH
async def test_two_updates_in_a_row_agree_with_transformers(client):
    await client.update(5, mode="http")
    assert await client.holds(5)
    assert not await client.holds(6)
    await client.update(6, mode="file")
    assert await client.holds(6)
    assert not await client.holds(5)
    chat = {"model": "policy", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    assert (await client.ask("POST", "/v1/chat/completions", chat, token=False))["choices"]
    # A few hundredths where nothing else runs; what took in proportion to requests or time-outs would take longer.
    assert max(client.setting.pauses) < 10


@WINDOWS
async def test_the_trainer_scores_as_the_engine_beyond_a_window(client):
    """The probe is longer than the window of eight, and sampled at a temperature that the cap comes before."""
    await client.update(5)
    ids, sampled = await client.sample(PROBE, 24, temperature=0.7)
    tokens = torch.tensor(PROBE + ids)
    config = ModelConfig(path=str(client.setting.model(5)), dtype="float32", max_model_len=256, renderer="engine")
    with torch.no_grad():
        scored = whole_policy(config)(packed([tokens], torch.full((len(tokens),), 0.7))).logprobs
    assert float((scored[len(PROBE) - 1 :] - torch.tensor(sampled)).abs().max()) < TOLERANCE


def simple_guesses(prompt, ids):
    """For places among the ids, what followed the token before when it was there first: mostly the engine's guess."""
    tokens, followed_by = prompt + ids, {}
    for place, (before, token) in enumerate(pairwise(tokens), start=1 - len(prompt)):
        if place >= 0 and before in followed_by:
            yield place, followed_by[before]
        followed_by.setdefault(before, token)


@GUESSES
async def test_guessed_tokens_have_the_policys_probabilities(client):
    await client.update(5)
    prompts = [[*PROBE, number] * 3 for number in range(24)]
    # Those of the second half are no policy's that trains, but an eval's.
    temperatures = [1.0] * 12 + [0.7] * 12
    asked = [client.sample(prompt, 200, one) for prompt, one in zip(prompts, temperatures, strict=True)]
    found = likely = variance = 0.0
    for prompt, temperature, (ids, logprobs) in zip(prompts, temperatures, await asyncio.gather(*asked), strict=True):
        assert len(ids) == len(logprobs) == 200
        scored = client.setting.distributions(5, prompt + ids)[len(prompt) - 1 :]
        expected = (scored.double() / temperature).log_softmax(-1)
        sampled = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
        assert float((sampled - torch.tensor(logprobs)).abs().max()) < TOLERANCE
        for place, guess in simple_guesses(prompt, ids):
            probability = float(expected[place, guess].exp())
            found, likely = found + (ids[place] == guess), likely + probability
            variance += probability * (1 - probability)
    counts = await client.metrics()
    taken, guessed = counts["accepted_draft_tokens_total"], counts["draft_tokens_total"]
    log.info("%d of %d guesses taken; %d came true, %.1f likely, +-%.1f", taken, guessed, found, likely, variance**0.5)
    assert 300 < taken < guessed
    assert abs(found - likely) < 5 * variance**0.5


@GUESSES
async def test_a_stop_token_among_guesses_is_the_last(client):
    await client.update(5)
    prompt = PROBE * 3
    ids, _ = await client.sample(prompt, 200)
    stop = max(set(ids), key=ids.count)
    for ids, logprobs in await asyncio.gather(*(client.sample(prompt, 200, stop_token_ids=[stop]) for _ in range(16))):
        assert stop not in ids[:-1]
        assert len(ids) == len(logprobs)
        assert ids[-1] == stop or len(ids) == 200


async def samples_through_an_update(client, seed, length):
    """Eight samples that begin before an update over HTTP, and how many of them were in flight while it was made."""
    body = client.publish(seed, mode="http")
    running = [asyncio.create_task(client.sample([*PROBE, number], length)) for number in range(8)]
    async with asyncio.timeout(120):
        while not any(task.done() for task in running):
            if await client.at_work() == len(running):
                break
            await asyncio.sleep(0.01)
    frozen = await client.update_to(body)
    return await asyncio.gather(*running), frozen


@UNTIED
async def test_an_update_by_a_delta_agrees_with_transformers(client):
    base = client.publish(5)
    await client.update_to(base)
    body = client.publish(6, mode="http")
    folders = [client.setting.folder / "weights" / f"v{one['version']}" for one in (body, base)]
    body["digest"] = add_delta(*folders)
    for file in folders[0].glob("*.safetensors"):
        file.unlink()
    worker = await client.staged(body)
    assert (worker["state"], worker["error"], worker["delta"]) == ("staged", None, "used")
    assert worker["received_bytes"] == (folders[0] / "delta.bin").stat().st_size
    assert await client.holds(5)
    await client.update_to(body)
    assert await client.holds(6)


@pytest.mark.parametrize("setting", ["untied", GUESSING], indirect=True)
async def test_requests_in_flight_survive_updates(client):
    length = 300
    for _ in range(6):
        await client.update(6)
        samples, frozen = await samples_through_an_update(client, 5, length)
        # On a busy machine the engine may be through with a request before the update comes.
        if frozen == len(samples):
            break
    assert frozen == len(samples) == 8
    for number, (ids, logprobs) in enumerate(samples):
        assert len(ids) == len(logprobs) == length
        prompt = [*PROBE, number]
        sampled = torch.tensor(logprobs)
        gaps = {seed: (sampled - client.setting.logprobs(seed, prompt + ids, len(prompt))).abs() for seed in (5, 6)}
        # The old weights until the pause, the new ones, over a recomputed cache, from then on.
        switch = int((gaps[6] < TOLERANCE).long().cumprod(0).sum())
        assert 0 < switch < length
        assert float(gaps[5][switch:].max()) < TOLERANCE


@UNTIED
async def test_bad_weights_leave_the_old_ones_in_service(client):
    await client.update(5)
    head = "lm_head.weight"
    changes = {
        "shape": lambda tensors: tensors.update({head: tensors[head][:-1]}),
        "missing": lambda tensors: tensors.pop(head),
        "dtype": lambda tensors: tensors.update({head: tensors[head].bfloat16()}),
    }
    for message, change in changes.items():
        worker = await client.staged(client.publish(6, change=change))
        assert worker["state"] == "failed"
        assert message in worker["error"]
    body = client.publish(6)
    assert "sha256" in (await client.staged({**body, "digest": "0" * 64}))["error"]
    path = Path(body["url"].removeprefix("file://")).parent / "part-0.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes, the weight manifest says" in (await client.staged(body))["error"]
    await client.ask("POST", "/echorl/pause", {"lease_s": 60})
    policy = {key: body[key] for key in ("attempt", "version", "digest")}
    await client.ask("POST", "/echorl/apply", policy, status=409)
    await client.ask("POST", "/echorl/resume")
    assert await client.holds(5)


@UNTIED
async def test_an_unused_pause_ends_by_itself(client):
    await client.update(5)
    await client.ask("POST", "/echorl/pause", {"lease_s": 5.0})
    assert await client.ask("GET", "/is_paused") == {"is_paused": True}
    waiting = asyncio.create_task(client.sample(PROBE, 4))
    async with asyncio.timeout(120):
        ids, _ = await waiting
    assert len(ids) == 4
    assert await client.ask("GET", "/is_paused") == {"is_paused": False}


@UNTIED
async def test_running_requests_can_be_aborted(client):
    await client.update(5)
    # So many that they outlast whatever holds this process up, and whose end, if they fail, is seen.
    running = [asyncio.create_task(client.sample([*PROBE, number], 900)) for number in range(16)]
    aborted = 0
    async with asyncio.timeout(120):
        while not all(task.done() for task in running):
            aborted += (await client.ask("POST", "/echorl/abort_requests"))["aborted"]
            await asyncio.sleep(0.01)
        samples = await asyncio.gather(*running)
    assert aborted
    assert min(len(ids) for ids, _ in samples) < 900


@UNTIED
async def test_a_lease_that_ends_after_an_apply_ends_the_engine_with_code_6(client):
    body = client.publish(6)
    await client.staged(body)
    # Long enough for the apply to be through.
    await client.ask("POST", "/echorl/pause", {"lease_s": 15.0})
    await client.ask("POST", "/echorl/apply", {key: body[key] for key in ("attempt", "version", "digest")})
    engine = client.setting.engine
    segments = [Path("/dev/shm") / name for name in json.loads((engine.work / "owner.json").read_bytes())["segments"]]
    assert any(path.exists() for path in segments)
    assert await asyncio.to_thread(engine.wait_until_gone) == 6
    assert not any(path.exists() for path in segments)


@TIED
async def test_an_apply_that_fails_half_way_ends_the_engine_with_code_6(client):
    body = client.publish(5)
    await client.staged(body)
    await client.ask("POST", "/echorl/pause", {"lease_s": 60})
    policy = {key: body[key] for key in ("attempt", "version", "digest")}
    answer = await client.ask("POST", "/echorl/apply", policy, status=500)
    assert "engine.mid_apply" in answer["error"]
    assert await asyncio.to_thread(client.setting.engine.wait_until_gone) == 6
