"""Real vLLM engines that a trainer's ranks broadcast to, by gloo: the same numbers as by HTTP, and a lost peer."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import torch

from echorl_core.wire.engine import StageRequest
from echorl_testing import campaign
from echorl_testing.engines.broadcasting import BroadcastingTrainer
from echorl_testing.engines.engine import Engine, running_engine
from echorl_trainer.seeded import SHAPES, write_seeded_model

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.ALL, pytest.mark.timeout(900)]

RUN = "test-run"
PROBE = [7, 1, 200, 33, 64, 91, 258, 5, 17, 120]


class Client:
    """HTTP to one engine."""

    def __init__(self, session: aiohttp.ClientSession, engine: Engine) -> None:
        self._session, self._engine = session, engine

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"X-EchoRL-Token": self._engine.token, "X-EchoRL-Run": RUN}
        async with self._session.request(method, self._engine.url + path, json=body, headers=headers) as response:
            answer = json.loads(await response.text() or "null")
            assert response.status == 200, answer
            return answer

    async def staged(self, request: StageRequest) -> dict[str, Any]:
        """What its only worker says after it has staged."""
        await self.ask("POST", "/echorl/stage", msgspec.to_builtins(request))
        (worker,) = (await self.ask("GET", "/echorl/stage?wait=60"))["workers"]
        found: dict[str, Any] = worker
        return found

    async def apply(self, request: StageRequest) -> list[float]:
        """Put the version in place; the engine's logprobs of the probe."""
        await self.ask("POST", "/echorl/pause", {"lease_s": 60})
        await self.ask("POST", "/echorl/apply", msgspec.to_builtins(request.policy))
        await self.ask("POST", "/echorl/resume")
        body = {"model": "policy", "prompt": PROBE, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        (choice,) = (await self.ask("POST", "/v1/completions", body))["choices"]
        pairs = zip(PROBE[1:], choice["prompt_logprobs"][1:], strict=True)
        return [one[str(token)]["logprob"] for token, one in pairs]


@pytest.mark.parametrize("ranks", [1, 2])
async def test_engines_take_broadcasts_while_one_of_them_dies(tmp_path: Path, ranks: int) -> None:
    write_seeded_model(tmp_path / "model", SHAPES["tiny"], 1)
    trainer = BroadcastingTrainer(tmp_path / "model", run_uid=RUN, token="test-token", files=4, ranks=ranks)
    slices = trainer.num_slices
    dies = {"ECHORL_FAULTS": f"engine.mid_broadcast@{slices + slices // 2}=kill"}
    with (
        running_engine(tmp_path / "model", tmp_path / "stays", run_uid=RUN) as stays,
        running_engine(tmp_path / "model", tmp_path / "dies", run_uid=RUN, variables=dies) as lost,
    ):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=180)) as session:
            one, other = Client(session, stays), Client(session, lost)
            request = trainer.publish(0)
            for worker in await asyncio.gather(one.staged(request), other.staged(request)):
                assert (worker["state"], worker["error"], worker["broadcast"]) == ("staged", None, True)
            by_broadcast = await one.apply(request)
            assert await other.apply(request) == by_broadcast

            request, before = trainer.publish(1), lost.members()
            dying = asyncio.create_task(other.staged(request))
            worker = await one.staged(request)
            assert (worker["state"], worker["error"]) == ("staged", None)
            assert await one.apply(request) != by_broadcast
            assert len(lost.members()) < len(before)
            dying.cancel()

            request = trainer.publish(2)
            worker = await one.staged(request)
            assert (worker["state"], worker["error"], worker["broadcast"]) == ("staged", None, True)
            again = await one.apply(request)
            # The same bytes by HTTP: the very same numbers.
            fetched = msgspec.structs.replace(trainer.publish(3, values_of=2), broadcast=False)
            worker = await one.staged(fetched)
            assert (worker["state"], worker["error"], worker["broadcast"]) == ("staged", None, False)
            assert await one.apply(fetched) == again
            trainer.health.watch.check()

            other_dtype = BroadcastingTrainer(tmp_path / "model", run_uid=RUN, token="test-token", dtype=torch.bfloat16)
            worker = await one.staged(other_dtype.publish(4))
            assert worker["state"] == "failed"
            assert "dtype BF16, accepted: F32" in worker["error"]
            assert other_dtype.sent == []
