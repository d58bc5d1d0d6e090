"""Episodes from task to samples: real workers, real gateway; only the engine is a script."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from echorl_core.config import (
    AdvantageConfig,
    EchoConfig,
    EchoRoleConfig,
    EnvironmentConfig,
    FilterConfig,
    HookConfig,
    SamplingConfig,
)
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.advantages.advantage_hook import inputs_of
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.player import EpisodePlayer, build_player
from echorl_orchestrator.failures import BadInputError, EpisodeError, ErrorKind
from echorl_orchestrator.filters.filter_hook import inputs_of as filter_inputs_of
from echorl_orchestrator.rollout.groups import Group, close
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import batch_config
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port
from echorl_testing.waiting import until

SUPPORT = str(Path(__file__).parents[2] / "support")
ODD = "import:echorl_testing.orchestrator.odd_environments"


class Stage:
    """A player with its environments and scripted policy."""

    def __init__(
        self,
        player: EpisodePlayer,
        policy: ScriptedPolicy,
        server: TestServer,
        environments: list[EnvironmentConfig],
    ) -> None:
        self.player, self.server = player, server
        self.policy = policy
        self.environments = {environment.name: environment for environment in environments}
        self._number = 0

    async def play(self, index: int = 0, name: str = "odd", episode: str | None = None) -> EpisodeOutcome:
        self._number += 1
        key = episode or f"e{self._number}"
        environment = self.environments[name]
        task = await self.player.task(environment, index)
        return await asyncio.wait_for(
            self.player.play(environment, task, episode=key, group="g", seed=7, attempt=1), 180
        )


def odd(
    *does: str, factory: str = "odd", name: str = "odd", args: dict[str, Any] | None = None, **fields: Any
) -> EnvironmentConfig:
    chosen = {"does": list(does), **(args or {})} if factory.endswith("odd") else args or {}
    return EnvironmentConfig(
        **{
            "name": name,
            "type": f"{ODD}:{factory}",
            "args": chosen,
            "sampling": SamplingConfig(max_completion_tokens=40),
            **fields,
        }
    )


@asynccontextmanager
async def staged(
    folder: Path,
    *environments: EnvironmentConfig,
    reply: Any = lambda _: "ok<|im_end|>",
    http: bool = False,
    codec: type[CompactCodec] = CompactCodec,
    **options: Any,
) -> AsyncIterator[Stage]:
    model = write_byte_tokenizer(folder / "model")
    tokenizer = TextTokenizer(model, name="bytes")
    policy = ScriptedPolicy(tokenizer, reply)
    port = free_port() if http else 0
    config = orchestrator_config(model, list(environments), port=port, python_path=[SUPPORT], **options)
    player = EpisodePlayer(config, IDENTITY, policy, codec(tokenizer))
    app = web.Application()
    player.routes(app)
    try:
        async with TestServer(app, port=port) as server:
            await player.start()
            yield Stage(player, policy, server, [*environments, *(entry.environment for entry in config.evals)])
        assert player.open_sessions == 0
    finally:
        await player.close()


def solve(text: str) -> str:
    """The quickstart's intended way through."""
    question = re.search(r"user\n(\w+)\?", text)
    assert question is not None
    seen = re.findall(r"<tool_response>(.*?)</tool_response>", text, re.DOTALL)
    if not seen:
        return f"<tool_call>grep {question[1]}</tool_call><|im_end|>"
    if len(seen) == 1:
        return f"<tool_call>cat {seen[0]}</tool_call><|im_end|>"
    return f"<tool_call>submit {seen[1].split('=')[1]}</tool_call><|im_end|>"


TERMINAL = EnvironmentConfig(
    name="terminal",
    type="builtin:terminal",
    max_turns=4,
    sampling=SamplingConfig(max_completion_tokens=20),
    echo=EchoConfig(tool=EchoRoleConfig(alpha=0.01)),
    workers=2,
)


async def test_the_terminal_recipe_end_to_end(tmp_path: Path) -> None:
    held_out = EnvironmentConfig(name="held-out", type="builtin:terminal", args={"split": "test", "num_tasks": 8})
    async with staged(tmp_path, TERMINAL, evals=[held_out], reply=solve) as stage:
        assert await stage.player.num_tasks(TERMINAL) == 512
        assert await stage.player.num_tasks(held_out) == 8
        outcomes = await asyncio.gather(*(stage.play(index, "terminal") for index in range(64)))
    assert {outcome.reward for outcome in outcomes} == {1.0}
    assert {outcome.stop for outcome in outcomes} == {StopReason.TERMINATED}
    outcome = outcomes[0]
    (sample,) = outcome.samples
    last_prompt, last = next(
        (prompt, made)
        for prompt, made in stage.policy.returned
        if prompt == sample.token_ids.tolist()[: len(prompt)] and len(prompt) > 80
    )
    assert sample.token_ids.tolist() == last_prompt + last.token_ids
    action = sample.role == TokenRole.ACTION
    np.testing.assert_array_equal(sample.rl_weight, action.astype(np.float32))
    np.testing.assert_allclose(sample.logprobs[action], -np.flatnonzero(action) / 1000, rtol=1e-5)
    observed = sample.role == TokenRole.ENV_OUTPUT
    np.testing.assert_array_equal(sample.ce_weight, observed.astype(np.float32) * np.float32(0.01))
    assert stage.policy._tokenizer.decode(sample.token_ids[observed]).startswith(outcome.messages[2]["content"])
    assert (outcome.num_turns, outcome.sampled_tokens, outcome.kept_tokens) == (3, action.sum(), action.sum())
    assert (outcome.version_low, outcome.version_high, outcome.truncated, outcome.unattributed) == (3, 3, False, False)
    assert [turn["tokens"] for turn in outcome.turns] == [12, 12, 14]
    assert all(turn["tool_s"] > 0 for turn in outcome.turns)
    assert sorted(set(stage.policy.released)) == sorted(f"e{number}" for number in range(1, 65))


FAILURES = [
    ("reset raises", ErrorKind.ENV, "ValueError: no such level", "reset"),
    ("step raises", ErrorKind.ENV, "KeyError: 'inventory'", "step"),
    ("nan", ErrorKind.ENV, "reward: found nan, accepted is a finite number", "step"),
    ("nan metric", ErrorKind.ENV, "m: found inf, accepted is a finite number", "step"),
    ("unscored", ErrorKind.ENV, "the episode ended (terminated) without a reward", "step"),
    ("wrong reward", ErrorKind.ENV, "step returned an unusable Step: Expected `float | null`, got `str`", "step"),
    ("wrong role", ErrorKind.ENV, "messages[2].role: found 'robot'", "step"),
    ("wrong last words", ErrorKind.ENV, "messages[2].tool_calls[0]: a tool call needs function.name", "step"),
    ("wrong span", ErrorKind.ENV, "step: warnings: there is no message 0", "step"),
    ("end at once", ErrorKind.ENV, "reset ended the episode before the first model turn", "reset"),
    ("long prompt", ErrorKind.OVERLONG, "at most 511", "turn"),
]


async def test_failures_have_a_kind_and_leave_no_samples(tmp_path: Path) -> None:
    async with staged(tmp_path, odd(*(does for does, _, _, _ in FAILURES))) as stage:
        with capture_logs() as logs:
            outcomes = await asyncio.gather(*(stage.play(index) for index in range(len(FAILURES))))
        assert stage.player.pool("odd").deaths == 0
    assert {line["episode"]: line["phase"] for line in logs if line["event"] == "episode_failed"} == {
        outcome.episode: phase for outcome, (_, _, _, phase) in zip(outcomes, FAILURES, strict=True)
    }
    for outcome, (does, kind, message, phase) in zip(outcomes, FAILURES, strict=True):
        assert outcome.phase == phase, does
        assert (outcome.error_kind, outcome.stop, outcome.reward) == (kind, StopReason.ERROR, None), does
        assert outcome.samples == []
        assert message in (outcome.error or "")


async def test_odd_endings(tmp_path: Path) -> None:
    environment = odd("fine", "truncate", "close raises", state_columns=["seed", "absent"])
    async with staged(tmp_path, environment) as stage:
        fine, truncated, closing = [await stage.play(index) for index in range(3)]
    assert (fine.reward, fine.stop, fine.truncated, fine.num_turns) == (0.5, StopReason.TERMINATED, False, 2)
    assert fine.info == {"seed": 7}
    assert (truncated.reward, truncated.stop, truncated.truncated) == (0.75, StopReason.TRUNCATED, True)
    assert closing.error_kind is None


async def test_limits_keep_tokens_and_score(tmp_path: Path) -> None:
    async with staged(tmp_path, odd("fine", max_turns=1)) as stage:
        limited = await stage.play()
    assert (limited.stop, limited.reward, limited.truncated) == (StopReason.MAX_TURNS, 0.25, True)
    assert len(limited.samples) == 1
    async with staged(tmp_path, odd("fine"), reply=lambda _: "x" * 40, max_model_len=80) as stage:
        overlong = await stage.play()
    assert (overlong.stop, overlong.reward, overlong.truncated) == (StopReason.PROMPT_TOO_LONG, 0.25, True)
    assert (overlong.num_turns, overlong.error_kind) == (1, None)
    assert overlong.samples[0].rl_weight.sum() == 40


async def test_an_endless_loop_is_a_timeout_that_stalls_nobody(tmp_path: Path) -> None:
    # Time enough for the others, whose code shares a process with the loop.
    async with staged(tmp_path, odd("loop", "fine", episode_timeout_s=8.0, max_retries=0)) as stage:
        hung = asyncio.create_task(stage.play(0))
        others = await asyncio.gather(*(stage.play(1) for _ in range(8)))
        assert [outcome.reward for outcome in others] == [0.5] * 8
        outcome = await hung
        assert (outcome.error_kind, outcome.samples) == (ErrorKind.TIMEOUT, [])
        assert "episodeTimeout" in (outcome.error or "")
        pool = stage.player.pool("odd")
        await until(lambda: pool.retirements == 1)
        assert (await stage.play(1)).reward == 0.5


async def test_a_timeout_may_be_scored(tmp_path: Path) -> None:
    # Time enough for the turn before the one that sleeps.
    async with staged(tmp_path, odd("sleep", factory="async_odd", episode_timeout_s=5.0, on_timeout="score")) as stage:
        outcome = await stage.play()
    assert (outcome.stop, outcome.reward, outcome.truncated) == (StopReason.TIMEOUT, 0.0, True)
    assert len(outcome.samples) == 1


async def test_a_died_worker_is_a_sandbox_error_and_tried_again(tmp_path: Path) -> None:
    environment = odd("die once", "exit", args={"marks": str(tmp_path)}, max_retries=1)
    async with staged(tmp_path, environment) as stage:
        again = await stage.play(0)
        assert (again.reward, again.error_kind) == (0.5, None)
        assert again.num_turns == 2
        never = await stage.play(1)
        assert never.error_kind is ErrorKind.SANDBOX
        assert stage.player.pool("odd").deaths >= 3


async def test_engine_failures_are_retried_up_to_the_limit(tmp_path: Path) -> None:
    async with staged(tmp_path, odd("fine", max_retries=2)) as stage:
        stage.policy.errors = [
            EpisodeError(ErrorKind.PROVIDER, "lost"),
            EpisodeError(ErrorKind.INVALID_RESPONSE, "no ids"),
        ]
        assert (await stage.play()).reward == 0.5
        stage.policy.errors = [EpisodeError(ErrorKind.PROVIDER, f"lost {number}") for number in range(3)]
        outcome = await stage.play()
    assert (outcome.error_kind, outcome.error) == (ErrorKind.PROVIDER, "lost 2")


async def test_cancelling_reaches_engine_and_environment(tmp_path: Path) -> None:
    async with staged(tmp_path, odd("fine", args={"marks": str(tmp_path)})) as stage:
        stage.policy.gate.clear()
        playing = asyncio.create_task(stage.play(episode="gone"))
        await asyncio.wait_for(stage.policy.arrived.wait(), 90)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert stage.policy.cancelled == 1
        assert stage.policy.released == ["gone"]
        await until((tmp_path / "closed-gone").exists)


async def test_groups_are_scored_as_a_whole(tmp_path: Path) -> None:
    said = iter(["a<|im_end|>", "bbb<|im_end|>"])
    environments = [
        odd(factory="group_scored", name=ends, args={"ends": ends}) for ends in ("rank", "short", "nan", "raise")
    ]
    async with staged(tmp_path, *environments, odd("fine"), reply=lambda _: next(said)) as stage:
        outcomes = [await stage.play(name="rank") for _ in range(2)]
        assert [outcome.error_kind for outcome in outcomes] == [None, None]
        task = await stage.player.task(environments[0], 0)
        assert await stage.player.score_group(environments[0], task, outcomes) == [1.0, 3.0]
        assert await stage.player.score_group(stage.environments["odd"], task, outcomes) is None
        problems = ["found 1 rewards for 2 episodes", "found nan", "RuntimeError: judge is out"]
        for environment, problem in zip(environments[1:], problems, strict=True):
            with pytest.raises(EpisodeError, match=problem) as caught:
                await stage.player.score_group(environment, task, outcomes)
            assert caught.value.kind is ErrorKind.ENV


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("well", None),
        ("short", "returned 1 values, accepted is a list of 2 finite numbers"),
        ("array", "returned ndarray, accepted is a list of 2 finite numbers"),
        ("raise", r"raised RuntimeError: no advantage today \(.*odd_environments.py:\d+\)"),
    ],
)
async def test_own_advantages_run_in_a_worker(tmp_path: Path, does: str, problem: str | None) -> None:
    said = iter(["bbb<|im_end|>"] * 2 + ["a<|im_end|>"] * 2)
    hook = HookConfig(import_path="echorl_testing.orchestrator.odd_environments:by_length", kwargs={"does": does})
    own = AdvantageConfig(type="custom", hook=hook)
    async with staged(tmp_path, odd("fine"), reply=lambda _: next(said), advantage=own) as stage:
        outcomes = [await stage.play() for _ in range(2)]
        inputs = inputs_of(outcomes, [1.0, 0.0], environment="odd", group_size=2)
        if problem is None:
            assert await stage.player.advantages(stage.environments["odd"], inputs) == [4.0, 0.0]
            return
        with pytest.raises(BadInputError, match=f"^spec.algorithm.advantage.import '{hook.import_path}': {problem}"):
            await stage.player.advantages(stage.environments["odd"], inputs)


async def test_own_advantages_that_cannot_be_imported_refuse_the_start(tmp_path: Path) -> None:
    own = AdvantageConfig(
        type="custom", hook=HookConfig(import_path="echorl_testing.orchestrator.odd_environments:absent")
    )
    with pytest.raises(BadInputError, match=r"spec.algorithm.advantage.import: module .* has no 'absent'"):
        async with staged(tmp_path, odd("fine"), advantage=own):
            pass


async def test_own_filters_run_in_a_worker(tmp_path: Path) -> None:
    path = "echorl_testing.orchestrator.odd_environments:poor"
    rules = [
        FilterConfig(type="repetition"),
        FilterConfig(type="custom", hook=HookConfig(import_path=path, kwargs={"below": 0.75})),
        FilterConfig(type="custom", hook=HookConfig(import_path=path, kwargs={"under": 1})),
    ]
    async with staged(tmp_path, odd("fine"), filters=rules) as stage:
        group = Group("g", Ticket("odd", 0, 0, 0), 2, 7)
        for index in range(2):
            group.add(index, await stage.play())
        ready = close(group, batch_config(), scores=[0.5, 1.0])
        asked = filter_inputs_of(ready, "odd")
        assert await stage.player.matches(stage.environments["odd"], 1, asked) == [True, False]
        with pytest.raises(BadInputError, match=rf"^spec.algorithm.filters\[2\].import '{path}': raised TypeError"):
            await stage.player.matches(stage.environments["odd"], 2, asked)


async def test_echo_filters_narrow_or_fail_the_episode(tmp_path: Path) -> None:
    def filtered(name: str, hook: str, **kwargs: Any) -> EnvironmentConfig:
        path = f"echorl_testing.orchestrator.odd_environments:{hook}"
        echo = EchoConfig(user=EchoRoleConfig(alpha=0.5), filter=HookConfig(import_path=path, kwargs=kwargs))
        return odd("fine", name=name, echo=echo)

    async with staged(tmp_path, filtered("even", "keep_even", shift=1), filtered("bad", "misaligned")) as stage:
        even, bad = await stage.play(name="even"), await stage.play(name="bad", episode="e-bad")
    selected = np.flatnonzero(even.samples[0].ce_weight)
    assert len(selected) > 0
    assert (selected % 2 == 1).all()
    assert bad.error_kind is ErrorKind.ENV
    assert re.match(r"episode e-bad: echo.filter: sample 0: found \d+ flags for \d+ tokens", bad.error or "")


class Unattributed(CompactCodec):
    """Cannot tell whose tokens are whose."""

    attributed = False


async def test_an_echo_filter_is_asked_without_attribution_and_not_about_an_episode_without_turns(
    tmp_path: Path,
) -> None:
    hook = HookConfig(import_path="echorl_testing.orchestrator.odd_environments:misaligned")
    echo = EchoConfig(user=EchoRoleConfig(alpha=0.5), filter=hook)
    plain = odd("fine", name="plain", echo=EchoConfig(user=EchoRoleConfig(alpha=0.5)))
    asked = odd("fine", "end at once", name="asked", echo=echo, max_retries=0)
    async with staged(tmp_path, plain, asked, codec=Unattributed) as stage:
        silent = await stage.play(name="plain")
        refused, empty = await stage.play(0, name="asked"), await stage.play(1, name="asked")
    assert silent.unattributed
    assert not any(sample.ce_weight.any() for sample in silent.samples)
    assert "echo.filter: sample 0: found" in (refused.error or "")
    assert empty.error == "reset ended the episode before the first model turn"


async def test_a_title_that_a_runner_asks_for_is_in_its_record_and_does_not_train(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"factory": "agent", "args": {"turns": 2, "ends": "titled"}}
    runners = [odd(name="used", **fields), odd(name="all", train_branches="all", **fields)]
    async with staged(tmp_path, *runners, http=True) as stage:
        used, everything = [await stage.play(name=runner.name) for runner in runners]
    assert (len(used.samples), used.unused_branches, used.sampled_tokens, used.kept_tokens) == (1, 1, 9, 6)
    assert (len(everything.samples), everything.unused_branches, everything.kept_tokens) == (2, 0, 9)
    asked = [[one["content"] for one in talk["messages"] if one["role"] == "user"] for talk in used.conversations]
    assert asked == [["hello", "go on"], ["name this talk"]]
    assert [talk["unused"] for talk in used.conversations] == [None, "sideCall"]
    assert [turn["unused"] for turn in used.turns] == [None, None, "sideCall"]
    assert [talk["unused"] for talk in everything.conversations] == [None, None]
    assert used.messages == everything.messages == used.conversations[0]["messages"]


async def test_an_agent_may_go_on_in_another_api_and_what_it_asked_for_is_recorded(
    tmp_path: Path,
) -> None:
    agent = odd(factory="agent", args={"turns": 1, "ends": "polyglot"})
    async with staged(tmp_path, agent, http=True) as stage:
        played = await stage.play()
    assert (len(played.samples), played.num_turns) == (1, 2)
    assert [turn["asked"] for turn in played.turns] == [{}, {"temperature": 0, "max_tokens": 7}]
    assert [call["sampling"].temperature for call in stage.policy.calls] == [1.0, 1.0]


async def test_a_runner_that_got_no_answer_made_no_turn(tmp_path: Path) -> None:
    async with staged(
        tmp_path, odd(factory="agent", args={"turns": 0, "ends": "deaf"}, max_retries=0), http=True
    ) as stage:

        def vanish(_: str) -> str:
            server = stage.server.runner.server
            assert isinstance(server, web.Server)
            for connection in server.connections:
                assert connection.transport is not None
                connection.transport.abort()
            return "ok<|im_end|>"

        stage.policy.say = vanish
        played = await stage.play()
    assert (played.error_kind, played.error) == (ErrorKind.ENV, "the runner finished without a model turn")
    assert len(stage.policy.returned) == 1


def _tried_again(environment: str) -> float:
    labels = {"environment": environment, "kind": "infrastructure"}
    return REGISTRY.get_sample_value("echorl_orchestrator_episode_retries_total", labels) or 0.0


async def test_a_runner_says_of_what_class_its_failure_is(tmp_path: Path) -> None:
    classes = {
        "infrastructure": (ErrorKind.INFRASTRUCTURE, "no node"),
        "harness": (ErrorKind.HARNESS, "no tests"),
        "agent": (ErrorKind.AGENT, "exit code 9"),
        "evicted": (ErrorKind.INFRASTRUCTURE, "evicted: node drained"),
        "overused": (ErrorKind.AGENT, "overused: memory"),
    }
    runners = [odd(factory="agent", name=ends, args={"ends": ends}) for ends in classes]
    before = {ends: _tried_again(ends) for ends in classes}
    async with staged(tmp_path, *runners, http=True) as stage:
        played = {ends: await stage.play(name=ends) for ends in classes}
    assert {ends: (one.error_kind, one.error) for ends, one in played.items()} == classes
    assert all(one.reward is None and not one.samples for one in played.values())
    # Once, whatever maxRetries says.
    assert {ends: _tried_again(ends) - before[ends] for ends in classes} == {
        **dict.fromkeys(classes, 0.0),
        "infrastructure": 1.0,
        "evicted": 1.0,
    }


async def test_an_agent_that_gives_up_because_an_engine_failed_is_not_scored(tmp_path: Path) -> None:
    async with staged(
        tmp_path, odd(factory="agent", args={"ends": "given up"}, max_retries=0), http=True, max_model_len=160
    ) as stage:
        stage.policy.errors = [EpisodeError(ErrorKind.PROVIDER, "lost")]
        lost = await stage.play()
        well = await stage.play()
    assert (lost.error_kind, lost.error, lost.reward) == (ErrorKind.PROVIDER, "lost", None)
    assert well.reward == 0.5


async def test_a_runner_plays_through_the_gateway(tmp_path: Path) -> None:
    runners = [
        odd(factory="agent", name="well", args={"turns": 3}, max_turns=5),
        odd(factory="agent", name="limited", args={"turns": 3, "ends": "forgiving"}, max_turns=2),
        odd(factory="agent", name="long", args={"turns": 9, "ends": "forgiving"}),
        odd(factory="agent", name="silent", args={"turns": 0}),
        odd(factory="agent", name="unscored", args={"ends": "unscored"}),
        odd(factory="agent", name="hang", args={"ends": "hang"}, episode_timeout_s=0.5, max_retries=0),
    ]
    async with staged(tmp_path, *runners, http=True, max_model_len=160) as stage:
        well, limited, long, silent, unscored, hang = [await stage.play(name=runner.name) for runner in runners]
        stage.policy.errors = [EpisodeError(ErrorKind.PROVIDER, "lost")] * 4
        lost = await stage.play(name="well")
    assert (well.reward, well.stop, well.num_turns, well.metrics) == (0.5, StopReason.TERMINATED, 3, {"turns": 5.0})
    assert len(well.samples) == 1
    assert [message["role"] for message in well.messages] == ["user", "assistant"] * 3
    assert (limited.stop, limited.num_turns) == (StopReason.MAX_TURNS, 2)
    assert (long.stop, long.reward, long.truncated) == (StopReason.PROMPT_TOO_LONG, 0.5, True)
    assert (silent.error_kind, silent.error) == (ErrorKind.ENV, "the runner finished without a model turn")
    assert unscored.error_kind is ErrorKind.ENV
    assert hang.error_kind is ErrorKind.TIMEOUT
    assert (lost.error_kind, lost.error) == (ErrorKind.PROVIDER, "lost")


async def test_what_cannot_start_is_said_for_all_environments_at_once(tmp_path: Path) -> None:
    bad = [EnvironmentConfig(name=name, type=f"builtin:{name}") for name in ("chess", "go")]
    with pytest.raises(BadInputError, match=r"environments.chess.type: .*\n.*environments.go.type"):
        async with staged(tmp_path, *bad):
            pass


async def test_a_failure_in_the_background_ends_the_player(tmp_path: Path) -> None:
    marker = tmp_path / "own"
    marker.mkdir()
    (marker / "vanishing.py").write_text("from echorl_testing.orchestrator.odd_environments import odd as factory\n")
    environment = EnvironmentConfig(name="odd", type="import:vanishing:factory", args={"does": ["exit"]}, max_retries=0)
    model = write_byte_tokenizer(tmp_path / "model")
    config = orchestrator_config(model, [environment], python_path=[str(marker), SUPPORT])
    player = build_player(config, IDENTITY, ScriptedPolicy(TextTokenizer(model, name="b"), lambda _: "ok<|im_end|>"))
    try:
        await player.start()
        (marker / "vanishing.py").unlink()
        forever = asyncio.create_task(player.run_forever())
        await player.play(environment, {"key": 0, "does": "exit"}, episode="e", group="g", seed=1, attempt=1)
        with pytest.raises(BadInputError, match="'vanishing:factory' does not import"):
            await asyncio.wait_for(forever, 120)
    finally:
        await player.close()


async def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    config = orchestrator_config(write_byte_tokenizer(tmp_path), [odd("fine")], evals=[odd("fine")])
    with pytest.raises(BadInputError, match="names must be unique"):
        build_player(config, IDENTITY, ScriptedPolicy(None, str))
