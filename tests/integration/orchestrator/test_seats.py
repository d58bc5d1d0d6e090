"""Who plays a member, who of them learns, and what is refused; only the engine is a script."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

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
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_testing.orchestrator.multi_agent_stage import circle, endpoint, staged


async def test_beside_a_frozen_seat_only_the_tasks_seat_trains(tmp_path: Path) -> None:
    async with endpoint([web.Response(status=503), "<think>plan</think>hello"]) as (url, seen):
        seat = SeatConfig(policy="endpoint", url=url, model="big", key_variable="OPPONENT_KEY")
        args = {"learner_seats": ["a", None], "members": ["a", "b", "c"]}
        environment = circle(args=args, members={"b": seat})
        async with staged(tmp_path, environment, keys={"OPPONENT_KEY": "hush"}) as stage:
            outcome = await stage.play(environment)
            failed = await stage.play(environment, 1, episode="f")
    assert outcome.error is None  # the second try found the endpoint well
    assert [(unit.member, unit.reward) for unit in outcome.units] == [("a", 1.0)]
    assert outcome.rewards == {"a": 1.0, "b": -1.0, "c": 0.0}
    assert outcome.transcript[1] == {"slot": "all", "member": "b", "text": "hello"}
    assert (seen[1]["key"], seen[1]["model"], seen[1]["max_completion_tokens"]) == ("Bearer hush", "big", 60)
    assert seen[2]["messages"][1] == {"role": "assistant", "content": "<think>plan</think>hello"}
    assert failed.error_kind is ErrorKind.ENV
    assert "learnerSeat: needed by a frozen seat; found nothing, accepted: a or b or c" in (failed.error or "")


@pytest.mark.parametrize("seed", range(5))
async def test_an_opponent_sits_where_the_tasks_learner_does_not(tmp_path: Path, seed: int) -> None:
    """The debate of the examples, whose tasks name both seats by turns, against an endpoint that the manifest seats."""
    async with endpoint(["=B"]) as (url, seen):
        opponent = SeatConfig(policy="endpoint", url=url, model="big")
        args = {"split": "train", "seed": seed, "judge": "rule", "prompts": "short"}
        sampling = SamplingConfig(max_completion_tokens=8)
        debate = EnvironmentConfig(
            name="debate", type="builtin:debate", args=args, members={"b": opponent}, sampling=sampling
        )
        async with staged(tmp_path, debate, reply=lambda _: "mine<|im_end|>") as stage:
            outcomes = [await stage.play(debate, index, episode=f"e{index}") for index in range(4)]
    assert [outcome.error for outcome in outcomes] == [None] * 4
    assert [[unit.member for unit in outcome.units] for outcome in outcomes] == [["a"], ["b"], ["a"], ["b"]]
    for outcome, learner in zip(outcomes, "abab", strict=True):
        said = {one["member"]: one["text"] for one in outcome.transcript}
        assert said == {learner: "mine", "b" if learner == "a" else "a": "=B"}
    assert len(seen) == 4


async def test_an_endpoint_that_refuses_its_key_is_told_without_the_key(tmp_path: Path) -> None:
    refusal = web.json_response({"error": {"message": "no such key: hush"}}, status=401)
    async with endpoint([refusal]) as (url, _):
        seat = SeatConfig(policy="endpoint", url=url, model="big", key_variable="OPPONENT_KEY")
        environment = circle(args={"learner_seats": ["a"]}, members={"b": seat}, max_retries=0)
        async with staged(tmp_path, environment, keys={"OPPONENT_KEY": "hush"}) as stage:
            outcome = await stage.play(environment)
    assert outcome.error_kind is ErrorKind.INVALID_RESPONSE
    assert f"endpoint {url}/chat/completions: HTTP 401: no such key: ***" in (outcome.error or "")


async def test_a_base_seat_asks_the_engines_for_the_model_under_the_adapter(tmp_path: Path) -> None:
    environment = circle(args={"learner_seats": ["a"]}, members={"b": SeatConfig(policy="base")})
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
    train, held = circle(), circle("held", args={"learner_seats": ["b", None]})
    async with staged(tmp_path, train, evals=[held]) as stage:
        outcome = await stage.play(held)
        failed = await stage.play(held, 1, episode="f")
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
            circle(drop_members=["b"], members={"a": SeatConfig(policy="endpoint", url="http://x", model="m")}),
            {},
            "members.a.policy: found endpoint, accepted is learner: no other member could learn",
        ),
        (
            circle(members={"a": SeatConfig(policy="endpoint", url="http://x", model="m")}),
            {},
            "environments.circle: task 0: task.learnerSeat: needed by a frozen seat; found nothing, accepted: a or b",
        ),
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
