"""A real engine that an adapter trains on, and calls to it: updates, logprobs of prompts, samples."""

import json
from dataclasses import dataclass
from typing import Any

import aiohttp
import torch

from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.engines.engine_metrics import parse
from echorl_testing.engines.engine import Engine


@dataclass
class AdapterClient:
    """HTTP to one engine, with the run's token."""

    session: aiohttp.ClientSession
    engine: Engine

    async def ask(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """Decoded answer, which must have this status."""
        headers = {"X-EchoRL-Token": self.engine.token, "X-EchoRL-Run": self.engine.run_uid}
        async with self.session.request(method, self.engine.url + path, json=body, headers=headers) as response:
            answer = json.loads(await response.text() or "null")
            assert response.status == status, answer
            return answer

    async def at_work(self) -> int:
        """Requests that the engine has scheduled: each has its first token by the end of the step."""
        async with self.session.get(f"{self.engine.url}/metrics") as response:
            return int(parse(await response.text()).get("running", 0))

    async def staged(self, policy: PolicyAnnouncement) -> dict[str, Any]:
        """Stage and wait for the end of it; the only worker's status."""
        body = {"attempt": policy.attempt, "version": policy.version, "url": policy.url, "digest": policy.digest}
        await self.ask("POST", "/echorl/stage", {**body, "deadline_s": 120})
        (worker,) = (await self.ask("GET", "/echorl/stage?wait=60"))["workers"]
        assert worker["state"] != "staging"
        return dict(worker)

    async def update(self, policy: PolicyAnnouncement) -> int:
        """The whole update to a version; how many requests the engine had in flight while it stood still."""
        worker = await self.staged(policy)
        assert (worker["state"], worker["error"]) == ("staged", None)
        body = {"attempt": policy.attempt, "version": policy.version, "digest": policy.digest}
        await self.ask("POST", "/echorl/pause", {"lease_s": 60})
        running = int((await self.ask("GET", "/echorl/identity"))["running"])
        (applied,) = (await self.ask("POST", "/echorl/apply", body))["workers"]
        await self.ask("POST", "/echorl/resume")
        assert applied.items() >= body.items()
        return running

    async def prompt_logprobs(self, model: str, tokens: list[int]) -> torch.Tensor:
        """The engine's logprobs of tokens 1.. of a prompt, float32 [n - 1]."""
        body = {"model": model, "prompt": tokens, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        (choice,) = (await self.ask("POST", "/v1/completions", body))["choices"]
        pairs = zip(tokens[1:], choice["prompt_logprobs"][1:], strict=True)
        return torch.tensor([one[str(token)]["logprob"] for token, one in pairs])

    async def sample(self, model: str, prompt: list[int], length: int) -> tuple[list[int], torch.Tensor]:
        """Sampled ids and their logprobs, from the token route."""
        sampling = {"max_tokens": length, "temperature": 1.0, "logprobs": 0, "ignore_eos": True}
        body = {"model": model, "token_ids": prompt, "sampling_params": sampling}
        (choice,) = (await self.ask("POST", "/inference/v1/generate", body))["choices"]
        return choice["token_ids"], torch.tensor([one["logprob"] for one in choice["logprobs"]["content"]])
