"""Turns and units of members in multi-agent episodes; only the engine is a script."""

import asyncio
import re
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.episode_outcome import StopReason
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_testing.orchestrator.multi_agent_stage import circle, staged


def speech(text: str) -> str:
    """Members say who they are, after some private thought."""
    asked = re.findall(r"user\n(\w+)/([\w-]+)/", text)[-1]
    return f"<think>secret of {asked[0]}</think>{asked[0]} in {asked[1]}<|im_end|>"


async def test_one_episode_is_a_unit_for_each_member_and_each_extends_its_own_history(tmp_path: Path) -> None:
    environment = circle(state_columns=["said"])
    async with staged(tmp_path, environment, reply=speech) as stage:
        outcome = await stage.play(environment, 2)
        again = await stage.play(environment, 2, "f")
    assert (outcome.stop, outcome.error, outcome.samples) == (StopReason.SCHEDULE_EXHAUSTED, None, [])
    assert outcome.rewards == {"a": 1.0, "b": -1.0}
    assert outcome.reward == 0.0
    a, b = outcome.units
    assert [(one.episode, one.whole, one.member, one.reward) for one in (a, b)] == [
        ("e/a", "e", "a", 1.0),
        ("e/b", "e", "b", -1.0),
    ]
    assert a.metrics == {"a/steps": 3.0, "b/steps": 3.0, "parse_errors": 0.0}
    for unit, member in ((a, "a"), (b, "b")):
        (sample,) = unit.samples
        assert (sample.member, sample.episode, sample.task_key, unit.num_turns) == (member, f"e/{member}", 2, 2)
        # The whole history is what the engine was sent at the last turn, and what it answered.
        spoken = (one for one in stage.policy.returned if f"{member}/then-" in stage.tokenizer.decode(one[0]))
        prompt, last = next(spoken)
        assert sample.token_ids.tolist() == prompt + last.token_ids
        assert np.count_nonzero(sample.rl_weight) == unit.kept_tokens == unit.sampled_tokens
    assert outcome.sampled_tokens == a.sampled_tokens + b.sampled_tokens
    assert outcome.transcript == [
        {"slot": "all", "member": "a", "text": "a in all"},
        {"slot": "all", "member": "b", "text": "b in all"},
        {"slot": "then-a", "member": "a", "text": "a in then-a"},
        {"slot": "then-b", "member": "b", "text": "b in then-b"},
    ]
    assert again.info == {"said": {"a": "a in then-a", "b": "b in then-b"}}
    assert sorted(set(stage.policy.released)) == ["e/a", "e/b", "f/a", "f/b"]


async def test_private_reasoning_is_in_nobody_elses_prompt(tmp_path: Path) -> None:
    environment = circle()
    async with staged(tmp_path, environment, reply=speech) as stage:
        await stage.play(environment)
        for member, other in (("a", "b"), ("b", "a")):
            last = stage.prompts(member)[-1]
            assert f"secret of {member}" in last  # its own history is what it sampled
            assert f"secret of {other}" not in "".join(stage.prompts(member))
            assert f"[{other}:{other} in" in last


async def test_members_may_reason_in_a_tag_of_their_own(tmp_path: Path) -> None:
    """Without it what stands in the tag is speech."""
    chosen, plain = circle(think_tags=["think", "reason"]), circle("plain")

    def reasons(text: str) -> str:
        return speech(text).replace("think>", "reason>")

    async with staged(tmp_path, chosen, plain, reply=reasons) as stage:
        outcome, other = await stage.play(chosen), await stage.play(plain, episode="f")
        hidden = [prompt for call in stage.policy.calls if call["episode"] == "e/b" for prompt in [call["prompt"]]]
    assert [one["text"] for one in outcome.transcript] == ["a in all", "b in all", "a in then-a", "b in then-b"]
    assert not any("secret of a" in stage.tokenizer.decode(prompt) for prompt in hidden)
    assert other.transcript[0]["text"] == "<reason>secret of a</reason>a in all"
    assert [unit.num_turns for unit in outcome.units] == [2, 2]


BROKEN = {
    "unclosed": "aloud <think>secret",
    "stray": "secret</think>aloud",
    "nested": "aloud <think>x<think>secret</think>more secret",
    "repeated": "<think>secret</think>aloud<think>secret</think>",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_a_turn_with_broken_markup_trains_nothing_and_the_schedule_goes_on(tmp_path: Path, text: str) -> None:
    environment = circle()

    def reply(prompt: str) -> str:
        return f"{text}<|im_end|>" if "b/all/" in prompt and "b/then-b" not in prompt else "fine<|im_end|>"

    async with staged(tmp_path, environment, reply=reply) as stage:
        outcome = await stage.play(environment)
        assert "secret" not in "".join(stage.prompts("a"))
    assert (outcome.stop, outcome.parse_errors) == (StopReason.SCHEDULE_EXHAUSTED, 1)
    a, b = outcome.units
    assert a.kept_tokens == a.sampled_tokens
    (sample,) = b.samples
    assert b.kept_tokens == 5  # "fine" and the end of the turn
    assert set(sample.turn[sample.rl_weight != 0]) == {1}
    assert np.count_nonzero(sample.role == TokenRole.ACTION) == 5
    assert b.metrics["parse_errors"] == 1.0


async def test_a_failed_turn_cancels_its_siblings_and_nothing_of_the_slot_stands(tmp_path: Path) -> None:
    environment = circle(args={"members": ["a", "b", "c"]}, max_retries=0)
    async with staged(tmp_path, environment) as stage:
        stage.policy.gate.clear()
        task = asyncio.create_task(stage.play(environment))
        async with asyncio.timeout(90):
            while len(stage.policy.calls) < 3:
                stage.policy.arrived.clear()
                await stage.policy.arrived.wait()
        stage.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine gone"))
        stage.policy.gate.set()
        outcome = await task
    assert (outcome.error_kind, outcome.stop) == (ErrorKind.PROVIDER, StopReason.ERROR)
    assert (outcome.units, outcome.transcript, outcome.reward) == ([], [], None)
    assert outcome.phase == "turn all (talk)"


async def test_a_prompt_that_is_too_long_rolls_its_slot_back_and_keeps_what_was_before(tmp_path: Path) -> None:
    schedule = [["one", ["a", "b"]], ["two", ["a", "b"]]]
    environment = circle(args={"schedule": schedule})

    def reply(prompt: str) -> str:
        return ("x" * 30 if "b/one" in prompt else "y") + "<|im_end|>"

    # a hears the 30 letters of b and has no room left; b has.
    async with staged(tmp_path, environment, reply=reply, max_model_len=80) as stage:
        outcome = await stage.play(environment)
    assert (outcome.stop, outcome.truncated, outcome.error) == (StopReason.PROMPT_TOO_LONG, True, None)
    assert [one["slot"] for one in outcome.transcript] == ["one", "one"]
    assert [unit.num_turns for unit in outcome.units] == [1, 1]
    assert [unit.kept_tokens for unit in outcome.units] == [2, 31]
    assert outcome.rewards == {"a": 1.0, "b": -1.0}


@pytest.mark.parametrize(
    ("does", "message", "phase"),
    [
        ("raises", "on purpose", "step all (talk)"),
        ("grader fails", "no grade", "rewards"),
        ("forgets the first", "no reward of a", "rewards"),
        ("silent", "a was told nothing", "turn then-a (talk)"),
    ],
)
async def test_a_failing_environment_fails_its_own_episode_alone(
    tmp_path: Path, does: str, message: str, phase: str
) -> None:
    bad, good = circle("bad", args={"does": does}), circle("good")
    async with staged(tmp_path, bad, good) as stage:
        failed, fine = await asyncio.gather(stage.play(bad), stage.play(good, episode="f"))
    assert (failed.error_kind, failed.units) == (ErrorKind.ENV, [])
    assert message in (failed.error or "")
    assert (failed.phase, fine.phase, fine.error) == (phase, None, None)


async def test_an_environment_may_end_before_its_schedule_and_turns_may_be_limited(tmp_path: Path) -> None:
    early, short = circle("early", args={"does": "ends"}), circle("short", max_turns=3)
    async with staged(tmp_path, early, short) as stage:
        ended, limited = await asyncio.gather(stage.play(early), stage.play(short, episode="f"))
    assert (ended.stop, ended.truncated, ended.num_turns) == (StopReason.TERMINATED, False, 2)
    assert (limited.stop, limited.truncated, limited.num_turns) == (StopReason.MAX_TURNS, True, 3)


async def test_time_that_runs_out_fails_the_episode_or_scores_it_with_zeros(tmp_path: Path) -> None:
    slow = {"args": {"does": "hangs"}, "episode_timeout_s": 6.0, "max_retries": 0}  # enough for the first slot
    dropped, scored = circle("dropped", **slow), circle("scored", **slow, on_timeout="score")
    async with staged(tmp_path, dropped, scored) as stage:
        first, second = await asyncio.gather(stage.play(dropped), stage.play(scored, episode="f"))
    assert first.error_kind is ErrorKind.TIMEOUT
    assert (second.error, second.stop, second.rewards) == (None, StopReason.TIMEOUT, {"a": 0.0, "b": 0.0})
    assert [unit.kept_tokens for unit in second.units] == [3, 3]


async def test_a_call_out_of_turn_ends_the_episode_with_protocol(tmp_path: Path) -> None:
    environment = circle(args={"schedule": [["one", ["a"]], ["two", ["b"]]]})
    async with staged(tmp_path, environment) as stage:
        stage.policy.gate.clear()
        task = asyncio.create_task(stage.play(environment))
        async with asyncio.timeout(90):
            await stage.policy.arrived.wait()
        session = next(key for key in stage.player.session_keys if "-b-" in key)
        url = f"http://127.0.0.1:{stage.port}/s/{session}/v1/chat/completions"
        body = {"model": "policy", "messages": [{"role": "user", "content": "me first"}]}
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as answer:
            status = answer.status
        outcome = await task
    assert status >= 400
    assert outcome.error_kind is ErrorKind.PROTOCOL
    assert "slot 'one' is for a" in (outcome.error or "")
