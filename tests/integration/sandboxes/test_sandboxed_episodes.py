"""Episodes whose agent lives in a sandbox: real workers, real gateway, real sandboxes; the engine is a script."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import REGISTRY

from echorl_core.config import EnvironmentConfig, SamplingConfig, SandboxesConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port
from echorl_testing.sandboxes.processes import descendants
from echorl_testing.waiting import until

SUPPORT = str(Path(__file__).parents[2] / "support")
CONFIG = SandboxesConfig(cpu=1.0, memory_bytes=1 << 30, disk_bytes=32 << 20, processes=64, concurrency=2, ttl_s=600.0)

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def environment(marks: Path, ends: str = "well", **fields: Any) -> EnvironmentConfig:
    marks.mkdir(exist_ok=True)
    return EnvironmentConfig(
        name=f"env-{ends}",
        type="import:echorl_testing.sandboxes.environment:agent",
        args={"marks": str(marks), "ends": ends},
        sampling=SamplingConfig(max_completion_tokens=40),
        state_columns=["said", "disk"],
        **fields,
    )


@asynccontextmanager
async def playing(
    folder: Path, *environments: EnvironmentConfig, sandboxes: SandboxesConfig | None = CONFIG
) -> AsyncIterator[EpisodePlayer]:
    model = write_byte_tokenizer(folder / "model")
    tokenizer = TextTokenizer(model, name="bytes")
    port = free_port()
    config = orchestrator_config(model, list(environments), port=port, python_path=[SUPPORT])
    config = config.model_copy(update={"sandboxes": sandboxes})
    policy = ScriptedPolicy(tokenizer, lambda _: "ok<|im_end|>")
    player = EpisodePlayer(config, IDENTITY, policy, CompactCodec(tokenizer))
    app = web.Application()
    player.routes(app)
    try:
        async with TestServer(app, port=port):
            await player.start()
            yield player
    finally:
        await player.close()


async def play(player: EpisodePlayer, one: EnvironmentConfig, episode: str, key: int = 0) -> EpisodeOutcome:
    async with player.room(one):
        return await player.play(one, {"key": key}, episode=episode, group="g", seed=7, attempt=1)


def counted(name: str, one: EnvironmentConfig, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"echorl_orchestrator_{name}", {"environment": one.name, **labels}) or 0.0


def holders(player: EpisodePlayer, one: EnvironmentConfig) -> set[int]:
    return {below for pid in player.pool(one.name).pids for below in descendants(pid)}


async def test_an_agent_calls_the_model_from_its_sandbox_which_is_destroyed(tmp_path: Path) -> None:
    one = environment(tmp_path / "marks")
    async with playing(tmp_path, one) as player:
        started, destroyed = (counted(f"sandboxes_{what}_total", one) for what in ("started", "destroyed"))
        outcome = await play(player, one, "e1")
        assert outcome.error is None
        assert outcome.info["said"] == "ok\n"
        assert outcome.info["disk"] == str(32 << 20)
        assert [message["content"] for message in outcome.messages] == ["hello", "ok"]
        assert not holders(player, one)
        await until(lambda: counted("sandboxes_destroyed_total", one) == destroyed + 1)
        assert counted("sandboxes_started_total", one) == started + 1
        assert counted("sandbox_start_seconds_count", one) >= 1


async def test_limits_are_the_runs_where_an_episode_says_none_or_more(tmp_path: Path) -> None:
    one = environment(tmp_path / "marks")
    room = CONFIG.model_copy(update={"disk_bytes": 3 << 30})
    async with playing(tmp_path, one, sandboxes=room) as player:
        outcomes = [await play(player, one, f"e{key}", key) for key in (0, 1)]
    assert [outcome.info["disk"] for outcome in outcomes] == [str(3 << 30)] * 2


async def test_episodes_wait_for_room_over_all_workers(tmp_path: Path) -> None:
    one = environment(tmp_path / "marks", workers=2)
    async with playing(tmp_path, one) as player:
        outcomes = await asyncio.gather(*(play(player, one, f"e{number}") for number in range(7)))
        assert [outcome.error for outcome in outcomes] == [None] * 7
        spans = [json.loads(mark.read_text()) for mark in (tmp_path / "marks").iterdir()]
        at_once = [sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans]
        assert len(spans) == 7
        assert max(at_once) <= CONFIG.concurrency


async def test_an_episode_that_is_cancelled_or_out_of_time_leaves_no_sandbox(tmp_path: Path) -> None:
    one = environment(tmp_path / "marks", "hang")
    short = one.model_copy(update={"name": "short", "episode_timeout_s": 3.0, "max_retries": 0})
    async with playing(tmp_path, one, short) as player:
        episode = asyncio.create_task(play(player, one, "gone"))
        await until(lambda: any((tmp_path / "marks").iterdir()))
        assert holders(player, one)
        episode.cancel()
        await asyncio.gather(episode, return_exceptions=True)
        await until(lambda: not holders(player, one), 20)

        outcome = await play(player, short, "short")
        assert outcome.error_kind is ErrorKind.TIMEOUT
        await until(lambda: not holders(player, short), 20)


async def test_a_lost_sandbox_is_a_failure_of_infrastructure(tmp_path: Path) -> None:
    one = environment(tmp_path / "marks", "lost", max_retries=0)
    async with playing(tmp_path, one) as player:
        outcome = await play(player, one, "e1")
        assert outcome.error_kind is ErrorKind.INFRASTRUCTURE
        assert "evicted: the node is gone" in str(outcome.error)
        assert not holders(player, one)


async def test_what_cannot_have_sandboxes_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = environment(tmp_path / "marks")
    with pytest.raises(BadInputError, match=r"env-well: it runs in sandboxes; found no spec\.sandboxes, accepted"):
        async with playing(tmp_path, one, sandboxes=None):
            pass
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match=r"env-well: .*found no bwrap, accepted is bubblewrap"):
        async with playing(tmp_path, one):
            pass
