"""Episodes of ``builtin:swe`` as a run plays them: workers, gateway, sandboxes; the engine is a script."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from echorl_core.config import EnvironmentConfig, SamplingConfig, SandboxesConfig
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, bug_of, seeded_rows
from echorl_orchestrator.episode_outcome import EpisodeOutcome
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port
from echorl_testing.sandboxes.swe_rows import GOLD, SOURCE

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
SANDBOXES = SandboxesConfig(cpu=1.0, memory_bytes=1 << 28, disk_bytes=1 << 26, processes=64, concurrency=2, ttl_s=600.0)
SEEDED = {"num_tasks": 1, "functions": 1}
ROW: dict[str, Any] = {
    "image": "host",
    "workdir": "/repo",
    "statement": "calc.py is wrong",
    "files": {"calc.py": SOURCE.decode()},
    "tests": {"check.py": "import calc\nassert calc.add(2, 3) == 5\n"},
    "test_command": "python3 check.py",
    "patch": GOLD.decode(),
}


def fixing(text: str) -> str:
    """A model that fixes the one seeded repository."""
    bug = bug_of(seeded_rows(SeededArgs(**SEEDED))[0])
    calls = [f"read {bug.path}", f"replace {bug.path} {bug.line} {bug.right}", "submit"]
    return f"<tool_call>{calls[min(text.count('<tool_response>'), 2)]}</tool_call><|im_end|>"


def environment(name: str, **args: Any) -> EnvironmentConfig:
    sampling = SamplingConfig(max_completion_tokens=64)
    columns = ["ended", "diff"]
    return EnvironmentConfig(name=name, type="builtin:swe", args=args, sampling=sampling, state_columns=columns)


@asynccontextmanager
async def playing(folder: Path, *environments: EnvironmentConfig) -> AsyncIterator[tuple[EpisodePlayer, Any]]:
    model = write_byte_tokenizer(folder / "model")
    tokenizer = TextTokenizer(model, name="bytes")
    port = free_port()
    config = orchestrator_config(model, list(environments), port=port)
    policy = ScriptedPolicy(tokenizer, fixing)
    player = EpisodePlayer(
        config.model_copy(update={"sandboxes": SANDBOXES}), IDENTITY, policy, CompactCodec(tokenizer)
    )
    app = web.Application()
    player.routes(app)
    try:
        async with TestServer(app, port=port):
            await player.start()
            yield player, policy
    finally:
        await player.close()


async def play(player: EpisodePlayer, one: EnvironmentConfig, episode: str) -> EpisodeOutcome:
    task = await player.task(one, 0)
    return await player.play(one, task, episode=episode, group="g", seed=7, attempt=1)


async def test_a_fix_is_rewarded_and_every_sampled_token_trains(tmp_path: Path) -> None:
    one = environment("swe", seeded=SEEDED)
    async with playing(tmp_path, one) as (player, policy):
        played = await play(player, one, "e1")
        returned = [token for _, generation in policy.returned for token in generation.token_ids]
    assert (played.reward, played.error, played.num_turns, played.info["ended"]) == (1.0, None, 3, "graded")
    (sample,) = played.samples
    assert sample.token_ids[sample.role == TokenRole.ACTION].tolist() == returned
    assert played.info["diff"].startswith("diff --git")


async def test_failures_keep_their_class_on_the_way_to_the_run(tmp_path: Path) -> None:
    rows = {"harness": {**ROW, "setup": ["exit 9"]}, "infrastructure": {**ROW, "image": str(tmp_path / "nowhere")}}
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**row, "instance_id": name}) + "\n")
    environments = [environment(name, data=str(tmp_path / f"{name}.jsonl")) for name in rows]
    crashing = environment("crash", seeded=SEEDED, agent={"command": ["false"]}, on_agent_failure="drop")
    swe = environment("swe", seeded=SEEDED)
    async with playing(tmp_path, *environments, crashing, swe) as (player, policy):
        harness, infrastructure, crash = [await play(player, one, f"e-{one.name}") for one in (*environments, crashing)]
        policy.errors = [EpisodeError(ErrorKind.PROVIDER, "lost")] * 9
        engine = await play(player, swe, "e-engine")
    assert (harness.error_kind, harness.error) == (ErrorKind.HARNESS, "harness: setup: ended with 9")
    assert infrastructure.error_kind is ErrorKind.INFRASTRUCTURE
    assert crash.error_kind is ErrorKind.AGENT
    assert (engine.error_kind, engine.error) == (ErrorKind.PROVIDER, "lost")
    assert all(one.reward is None and not one.samples for one in (harness, infrastructure, crash, engine))
