"""Modes sft and opd from task to samples: real workers and sockets; teacher and engine are scripts."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echorl_core.config import EnvironmentConfig, SamplingConfig, SftConfig
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.player import EpisodePlayer, build_player
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_testing.orchestrator.fake_teacher import FakeTeacher, teaching
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)

TERMINAL = EnvironmentConfig(
    name="terminal", type="builtin:terminal", max_turns=4, sampling=SamplingConfig(max_completion_tokens=20)
)
SOLUTIONS = EnvironmentConfig(name="solutions", type="builtin:terminal-demonstrations", args={"num_tasks": 4})


def solves(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What a teacher that knows the terminal does next."""
    said = [message["content"] for message in messages if message["role"] == "tool"]
    if not said:
        return calls("grep", pattern=messages[0]["content"].rstrip("?"))
    if len(said) == 1:
        return calls("cat", path=said[0])
    found = re.search(r"=(\w+)", said[1])
    assert found is not None
    return calls("submit", word=found[1])


def calls(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call-{name}", "type": "function", "function": function}]}


@asynccontextmanager
async def playing(
    folder: Path,
    mode: str,
    *environments: EnvironmentConfig,
    teacher: FakeTeacher | None = None,
    sft: SftConfig | None = None,
    start: bool = True,
    **options: Any,
) -> AsyncIterator[tuple[EpisodePlayer, ScriptedPolicy]]:
    model = write_byte_tokenizer(folder / "model")
    policy = ScriptedPolicy(TextTokenizer(model, name="bytes"), lambda _: "<tool_call>grep port</tool_call><|im_end|>")
    config = orchestrator_config(model, list(environments), **options)
    batch = config.batch.model_copy(update={"mode": mode, "sft": sft or SftConfig()})
    asked = None if teacher is None else teacher.config()
    player = build_player(config.model_copy(update={"batch": batch, "teacher": asked}), IDENTITY, policy)
    try:
        if start:
            await player.start()
        yield player, policy
        assert player.open_sessions == 0
    finally:
        await player.close()


async def play(player: EpisodePlayer, environment: EnvironmentConfig) -> EpisodeOutcome:
    task = await player.task(environment, 0)
    return await player.play(environment, task, episode="e1", group="g", seed=7, attempt=1)


def text(player_policy: ScriptedPolicy, ids: Any) -> str:
    return player_policy._tokenizer.decode(ids.tolist())


async def test_a_given_conversation_is_learned_without_a_session_or_an_engine(tmp_path: Path) -> None:
    async with playing(tmp_path, "sft", SOLUTIONS) as (player, policy):
        outcome = await play(player, SOLUTIONS)
    assert policy.calls == []
    assert (outcome.reward, outcome.stop, outcome.num_turns) == (1.0, StopReason.TERMINATED, 3)
    [sample] = outcome.samples
    learned = text(policy, sample.token_ids[sample.ce_weight != 0])
    assert re.fullmatch(
        r"<tool_call>grep \w+</tool_call><\|im_end\|><tool_call>cat \S+</tool_call><\|im_end\|>"
        r"<tool_call>submit \w+</tool_call><\|im_end\|>",
        learned,
    )


async def test_a_teacher_plays_and_its_turns_are_learned(tmp_path: Path) -> None:
    async with (
        teaching(FakeTeacher(says=solves)) as teacher,
        playing(tmp_path, "sft", TERMINAL, teacher=teacher) as (player, policy),
    ):
        outcome = await play(player, TERMINAL)
    assert (outcome.error, outcome.reward, outcome.num_turns) == (None, 1.0, 3)
    assert policy.calls == []
    [sample] = outcome.samples
    learned = text(policy, sample.token_ids[sample.ce_weight != 0])
    assert learned.count("<|im_end|>") == 3
    assert not sample.rl_weight.any()
    assert not (sample.role == TokenRole.ACTION).any()
    assert outcome.kept_tokens == int(sample.ce_weight.sum())
    # One request at the start, one a turn; tools go along.
    assert len(teacher.requests) == 4
    assert {tool["function"]["name"] for tool in teacher.requests[1]["tools"]} == {"ls", "cat", "grep", "submit"}


async def test_what_tools_answer_the_teacher_can_be_learned_by_name(tmp_path: Path) -> None:
    sft = SftConfig(train_roles=["tool"], tool_names=["cat"])
    async with (
        teaching(FakeTeacher(says=solves)) as teacher,
        playing(tmp_path, "sft", TERMINAL, teacher=teacher, sft=sft) as (player, policy),
    ):
        outcome = await play(player, TERMINAL)
    [sample] = outcome.samples
    said = next(message["content"] for message in outcome.messages if message.get("name") == "cat")
    assert text(policy, sample.token_ids[sample.ce_weight != 0]) == said


async def test_a_message_that_was_cut_off_is_not_learned(tmp_path: Path) -> None:
    teacher = FakeTeacher(says=lambda messages: {"content": "let me th"}, finish_reason="length")
    async with teaching(teacher), playing(tmp_path, "sft", TERMINAL, teacher=teacher) as (player, _):
        outcome = await play(player, TERMINAL)
    assert outcome.error is None
    assert outcome.samples == []


async def test_a_teacher_that_goes_away_fails_the_episode(tmp_path: Path) -> None:
    async with (
        teaching(FakeTeacher(says=solves)) as teacher,
        playing(tmp_path, "sft", TERMINAL.model_copy(update={"max_retries": 0}), teacher=teacher) as (player, _),
    ):
        teacher.failures = [400]
        outcome = await play(player, TERMINAL.model_copy(update={"max_retries": 0}))
    assert outcome.error_kind is ErrorKind.INVALID_RESPONSE
    assert outcome.samples == []


async def test_evals_are_played_by_the_policy(tmp_path: Path) -> None:
    held_out = TERMINAL.model_copy(update={"name": "held-out"})
    async with playing(tmp_path, "sft", SOLUTIONS, evals=[held_out]) as (player, policy):
        outcome = await play(player, held_out)
    assert policy.calls
    assert (outcome.samples[0].role == TokenRole.ACTION).any()


async def test_the_policy_plays_and_the_teacher_judges(tmp_path: Path) -> None:
    async with teaching() as teacher:
        tokenizer = TextTokenizer(write_byte_tokenizer(tmp_path / "model"), name="bytes")
        teacher.decode = lambda token: tokenizer.decode([token])
        teacher.logprob = lambda place, token: -place / 64
        async with playing(tmp_path, "opd", TERMINAL, teacher=teacher) as (player, _):
            outcome = await play(player, TERMINAL)
    [sample] = outcome.samples
    assert sample.rl_weight.any()
    assert sample.ref_logprobs is not None
    np.testing.assert_array_equal(sample.ref_logprobs, -np.arange(sample.num_tokens, dtype=np.float32) / 64)


@pytest.mark.parametrize(
    ("mode", "environments", "evals", "reason"),
    [
        ("sft", [TERMINAL], [], "environments.terminal.type: builtin:terminal is played, and spec.algorithm.teacher"),
        ("rl", [SOLUTIONS], [], "environments.solutions.type: .* has given conversations"),
        ("sft", [SOLUTIONS], [SOLUTIONS.model_copy(update={"name": "x"})], "environments.x.type: .* has given"),
    ],
)
async def test_an_environment_that_does_not_fit_the_mode_is_refused_at_the_start(
    tmp_path: Path, mode: str, environments: list[EnvironmentConfig], evals: list[EnvironmentConfig], reason: str
) -> None:
    async with playing(tmp_path, mode, *environments, evals=evals, start=False) as (player, _):
        with pytest.raises(BadInputError, match=reason):
            await player.start()


async def test_a_teacher_without_logprobs_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    async with teaching(FakeTeacher(with_logprobs=False)) as teacher:
        async with playing(tmp_path, "opd", TERMINAL, teacher=teacher, start=False) as (player, policy):
            with pytest.raises(BadInputError, match=r"spec.algorithm.teacher: .*prompt_logprobs for 0 of"):
                await player.start()
        assert policy.calls == []


def test_an_engine_that_renders_cannot_tell_what_to_learn(tmp_path: Path) -> None:
    model = write_byte_tokenizer(tmp_path / "model")
    config = orchestrator_config(model, [SOLUTIONS], renderer="engine")
    config = config.model_copy(update={"batch": config.batch.model_copy(update={"mode": "sft"})})
    with pytest.raises(BadInputError, match=r"model.renderer: 'engine' cannot tell whose a token is"):
        build_player(config, IDENTITY, ScriptedPolicy(None, lambda _: ""))
