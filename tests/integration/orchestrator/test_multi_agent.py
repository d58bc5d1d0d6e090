"""Multi-agent episodes: real workers, real sessions, a real HTTP endpoint; only the engine is a script."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

from echorl_core.config import (
    AdvantageConfig,
    CurriculumConfig,
    EnvironmentConfig,
    FilterConfig,
    HookConfig,
    LoraConfig,
    SamplingConfig,
    SeatConfig,
)
from echorl_core.wire import TokenRole
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episodes import EpisodePlayer, build_player
from echorl_orchestrator.multi_agent.endpoint import NO_KEYS
from echorl_orchestrator.refusals import BadInputError
from echorl_orchestrator.types import EpisodeError, EpisodeOutcome, ErrorKind, StopReason
from echorl_testing.scripted_policy import IDENTITY, ScriptedPolicy, orchestrator_config, write_byte_tokenizer

SUPPORT = str(Path(__file__).parents[2] / "support")
RAE = AdvantageConfig(type="rae")


class Stage:
    def __init__(self, player: EpisodePlayer, policy: ScriptedPolicy, tokenizer: TextTokenizer, port: int) -> None:
        self.player, self.policy, self.tokenizer, self.port = player, policy, tokenizer, port

    async def play(self, environment: EnvironmentConfig, index: int = 0, episode: str = "e") -> EpisodeOutcome:
        task = await self.player.task(environment, index)
        playing = self.player.play(environment, task, episode=episode, group="g", seed=7, attempt=1)
        return await asyncio.wait_for(playing, 60)

    def prompts(self, member: str) -> list[str]:
        """What engines were asked for a member, as text."""
        calls = [call for call in self.policy.calls if call["episode"].endswith(f"/{member}")]
        return [self.tokenizer.decode(call["prompt"]) for call in calls]


def circle(name: str = "circle", **fields: Any) -> EnvironmentConfig:
    args = fields.pop("args", {})
    kind = "import:echorl_testing.talking_members:circle"
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
    model = write_byte_tokenizer(folder / "model")
    tokenizer = TextTokenizer(model, name="bytes")
    policy = ScriptedPolicy(tokenizer, reply)
    port = unused_port()
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
        async with asyncio.timeout(30):
            while len(stage.policy.calls) < 3:
                stage.policy.arrived.clear()
                await stage.policy.arrived.wait()
        stage.policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "engine gone"))
        stage.policy.gate.set()
        outcome = await task
    assert (outcome.error_kind, outcome.stop) == (ErrorKind.PROVIDER, StopReason.ERROR)
    assert (outcome.units, outcome.transcript, outcome.reward) == ([], [], None)


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
    ("does", "message"),
    [
        ("raises", "on purpose"),
        ("grader fails", "no grade"),
        ("forgets the first", "no reward of a"),
        ("silent", "a was told nothing"),
    ],
)
async def test_a_failing_environment_fails_its_own_episode_alone(tmp_path: Path, does: str, message: str) -> None:
    bad, good = circle("bad", args={"does": does}), circle("good")
    async with staged(tmp_path, bad, good) as stage:
        failed, fine = await asyncio.gather(stage.play(bad), stage.play(good, episode="f"))
    assert (failed.error_kind, failed.units) == (ErrorKind.ENV, [])
    assert message in (failed.error or "")
    assert fine.error is None


async def test_an_environment_may_end_before_its_schedule_and_turns_may_be_limited(tmp_path: Path) -> None:
    early, short = circle("early", args={"does": "ends"}), circle("short", max_turns=3)
    async with staged(tmp_path, early, short) as stage:
        ended, limited = await asyncio.gather(stage.play(early), stage.play(short, episode="f"))
    assert (ended.stop, ended.truncated, ended.num_turns) == (StopReason.TERMINATED, False, 2)
    assert (limited.stop, limited.truncated, limited.num_turns) == (StopReason.MAX_TURNS, True, 3)


async def test_time_that_runs_out_fails_the_episode_or_scores_it_with_zeros(tmp_path: Path) -> None:
    slow = {"args": {"does": "hangs"}, "episode_timeout_s": 1.0, "max_retries": 0}
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
        async with asyncio.timeout(30):
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


async def test_beside_a_frozen_seat_only_the_tasks_seat_trains(tmp_path: Path) -> None:
    async with endpoint([web.Response(status=503), "<think>plan</think>hello"]) as (url, seen):
        seat = SeatConfig(policy="endpoint", url=url, model="big", key_variable="OPPONENT_KEY")
        seats = {"args": {"learner_seat": "a", "members": ["a", "b", "c"]}, "members": {"b": seat}}
        environment, unnamed = circle(**seats), circle("unnamed", members={"b": seat})
        async with staged(tmp_path, environment, unnamed, keys={"OPPONENT_KEY": "hush"}) as stage:
            outcome = await stage.play(environment)
            failed = await stage.play(unnamed, episode="f")
    assert outcome.error is None  # the second try found the endpoint well
    assert [(unit.member, unit.reward) for unit in outcome.units] == [("a", 1.0)]
    assert outcome.rewards == {"a": 1.0, "b": -1.0, "c": 0.0}
    assert outcome.transcript[1] == {"slot": "all", "member": "b", "text": "hello"}
    assert (seen[1]["key"], seen[1]["model"], seen[1]["max_completion_tokens"]) == ("Bearer hush", "big", 60)
    assert seen[2]["messages"][1] == {"role": "assistant", "content": "<think>plan</think>hello"}
    assert failed.error_kind is ErrorKind.ENV
    assert "learnerSeat: needed by a frozen seat; found nothing, accepted: a" in (failed.error or "")


async def test_an_endpoint_that_refuses_its_key_is_told_without_the_key(tmp_path: Path) -> None:
    refusal = web.json_response({"error": {"message": "no such key: hush"}}, status=401)
    async with endpoint([refusal]) as (url, _):
        seat = SeatConfig(policy="endpoint", url=url, model="big", key_variable="OPPONENT_KEY")
        environment = circle(args={"learner_seat": "a"}, members={"b": seat}, max_retries=0)
        async with staged(tmp_path, environment, keys={"OPPONENT_KEY": "hush"}) as stage:
            outcome = await stage.play(environment)
    assert outcome.error_kind is ErrorKind.INVALID_RESPONSE
    assert f"endpoint {url}/chat/completions: HTTP 401: no such key: ***" in (outcome.error or "")


async def test_a_base_seat_asks_the_engines_for_the_model_under_the_adapter(tmp_path: Path) -> None:
    environment = circle(args={"learner_seat": "a"}, members={"b": SeatConfig(policy="base")})
    lora = LoraConfig(rank=8, alpha=16, target_modules=["q_proj"])
    async with staged(tmp_path, environment, lora=lora) as stage:
        outcome = await stage.play(environment)
    models = {(call["episode"], call["model"]) for call in stage.policy.calls}
    assert models == {("e/a", "policy"), ("e/b", "base")}
    assert [unit.member for unit in outcome.units] == ["a"]
    assert sorted(set(stage.policy.released)) == ["e/a", "e/b"]


async def test_a_judge_is_dropped_and_does_not_count_as_frozen(tmp_path: Path) -> None:
    async with endpoint(["fine"]) as (url, _):
        judge = SeatConfig(policy="endpoint", url=url, model="judge")
        environment = circle(args={"members": ["a", "b", "judge"]}, members={"judge": judge})
        own = circle("own", args={"members": ["a", "judge"]}, drop_members=["a"])
        async with staged(tmp_path, environment, own) as stage:
            outcome, other = await asyncio.gather(stage.play(environment), stage.play(own, episode="f"))
    assert [unit.member for unit in outcome.units] == ["a", "b"]
    assert [unit.member for unit in other.units] == ["judge"]


async def test_an_eval_is_the_seat_that_its_task_names(tmp_path: Path) -> None:
    train, held = circle(), circle("held", args={"learner_seat": "b"})
    async with staged(tmp_path, train, evals=[held, circle("unnamed")]) as stage:
        outcome = await stage.play(held)
        failed = await stage.play(circle("unnamed"), episode="f")
    assert (outcome.member, outcome.reward, len(outcome.samples)) == ("b", -1.0, 1)
    assert failed.error_kind is ErrorKind.ENV
    assert "needed by an eval" in (failed.error or "")


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        *(
            (circle(), {"advantage": one}, f"found '{one.type}'; environment 'circle' is multi-agent, which needs rae")
            for one in (
                AdvantageConfig(),
                AdvantageConfig(type="none"),
                AdvantageConfig(type="custom", hook=HookConfig(import_path="builtins:len")),
                AdvantageConfig(type="maxRl"),
            )
        ),
        (
            circle(),
            {"filters": [FilterConfig(type="difficulty", enforce=False)]},
            "spec.algorithm.filters: found 'difficulty', accepted are zeroAdvantage, gibberish, repetition or custom; "
            "environment 'circle' is multi-agent",
        ),
        (
            circle(curriculum=CurriculumConfig(easy_from=0.9, hard_to=0.0, keep_easy=0.1, keep_hard=0.5)),
            {},
            "environments.circle.curriculum: found a value, accepted is none; environment 'circle' is multi-agent",
        ),
        (EnvironmentConfig(name="d", type="builtin:digits"), {}, "found 'rae'; environment 'd' is not multi-agent"),
        (circle(members={"z": SeatConfig()}), {}, "members: found 'z', accepted are a, b"),
        (
            circle(members={"a": SeatConfig(policy="base")}),
            {},
            "members.a: policy base: the engines serve it beside an adapter alone",
        ),
        (circle(drop_members=["a", "b"]), {}, "no member learns"),
        (
            circle(members={"a": SeatConfig(policy="endpoint", url="http://x", model="m", key_variable="NOT_SET")}),
            {},
            "environment variable NOT_SET is missing",
        ),
        (circle(args={"members": ["a", "a"]}), {}, "'a' is there twice"),
    ],
)
async def test_what_does_not_fit_is_refused_at_the_start(
    tmp_path: Path, environment: EnvironmentConfig, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=re.escape(message)):
        async with staged(tmp_path, environment, **options):
            pass
