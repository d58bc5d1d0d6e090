"""Multi-agent episodes on a stage: real workers, real sessions, a real HTTP endpoint; only the engine is a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from echorl_core.config import (
    AdvantageConfig,
    EnvironmentConfig,
    LoraConfig,
    SamplingConfig,
)
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.episodes.multi_agent.endpoint import NO_KEYS
from echorl_orchestrator.episodes.player import EpisodePlayer, build_player
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port

SUPPORT = str(Path(__file__).parents[2])
RAE = AdvantageConfig(type="rae")


class Stage:
    """A player with its scripted policy, served on a port."""

    def __init__(self, player: EpisodePlayer, policy: ScriptedPolicy, tokenizer: TextTokenizer, port: int) -> None:
        self.player, self.policy, self.tokenizer, self.port = player, policy, tokenizer, port

    async def play(self, environment: EnvironmentConfig, index: int = 0, episode: str = "e") -> EpisodeOutcome:
        """What comes of a task."""
        task = await self.player.task(environment, index)
        playing = self.player.play(environment, task, episode=episode, group="g", seed=7, attempt=1)
        return await asyncio.wait_for(playing, 180)

    def prompts(self, member: str) -> list[str]:
        """What engines were asked for a member, as text."""
        calls = [call for call in self.policy.calls if call["episode"].endswith(f"/{member}")]
        return [self.tokenizer.decode(call["prompt"]) for call in calls]


def circle(name: str = "circle", **fields: Any) -> EnvironmentConfig:
    """An environment of ``talking_members``."""
    args = fields.pop("args", {})
    kind = "import:echorl_testing.orchestrator.talking_members:circle"
    sampling = SamplingConfig(max_completion_tokens=60)
    return EnvironmentConfig(**{"name": name, "type": kind, "args": args, "sampling": sampling, **fields})


@asynccontextmanager
async def staged(
    folder: Path,
    *environments: EnvironmentConfig,
    reply: Callable[[str], Any] = lambda _: "ok<|im_end|>",
    keys: Mapping[str, str] = NO_KEYS,
    lora: LoraConfig | None = None,
    **options: Any,
) -> AsyncIterator[Stage]:
    """The stage for some environments; ``reply``: what engines say to a prompt."""
    model = write_byte_tokenizer(folder / "model")
    tokenizer = TextTokenizer(model, name="bytes")
    policy = ScriptedPolicy(tokenizer, reply)
    port = free_port()
    chosen = {"advantage": RAE, **options}
    config = orchestrator_config(model, list(environments), port=port, python_path=[SUPPORT], **chosen)
    config = config.model_copy(update={"model": config.model.model_copy(update={"lora": lora})})
    player = build_player(config, IDENTITY, policy, seat_keys=keys)
    app = web.Application()
    player.routes(app)
    try:
        async with TestServer(app, port=port):
            await player.start()
            yield Stage(player, policy, tokenizer, port)
        assert player.open_sessions == 0
    finally:
        await player.close()


@asynccontextmanager
async def endpoint(answers: list[web.Response | str]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A chat endpoint; the last answer is given again and again."""
    seen: list[dict[str, Any]] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append({"key": request.headers.get("Authorization"), **await request.json()})
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, web.Response):
            return found
        return web.json_response({"choices": [{"message": {"content": found}, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    async with TestServer(app) as server:
        yield str(server.make_url("/v1")), seen
