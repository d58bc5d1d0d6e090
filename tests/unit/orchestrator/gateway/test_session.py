import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echorl_core.config import ModelConfig, SamplingConfig
from echorl_orchestrator.chat.messages import MessageError, wire_message
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.engine_rendering import EngineRendering, PromptTooLongError
from echorl_orchestrator.codec.renderers_codec import RenderersCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.engines.generation import ChatGeneration, Generation
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionClosedError, SessionSpec, TurnLimitError
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer

TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"properties": {"pattern": {}}}}}]
PROMPT = [{"role": "user", "content": "port?"}]
GREP = "<tool_call>grep port</tool_call><|im_end|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("model")), name="bytes")


def result(turn: Any, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": turn.message["tool_calls"][0]["id"], "content": text}


def session(tokenizer: TextTokenizer, policy: ScriptedPolicy, **changes: Any) -> GatewaySession:
    spec: dict[str, Any] = {
        "key": "k",
        "episode": "e",
        "codec": CompactCodec(tokenizer),
        "generator": policy,
        "sampling": SamplingConfig(max_completion_tokens=64),
        "max_model_len": 512,
    }
    return GatewaySession(SessionSpec(**{**spec, **changes}))


def policy_of(tokenizer: TextTokenizer, *replies: str | list[int]) -> ScriptedPolicy:
    left = list(replies)
    return ScriptedPolicy(tokenizer, lambda _: left.pop(0) if len(left) > 1 else left[0])


async def test_a_conversation_is_one_branch_of_engine_tokens(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, GREP, "done<|im_end|>")
    gateway = session(tokenizer, policy)
    first = await gateway.turn(PROMPT, TOOLS)
    assert first.finish_reason == "tool_calls"
    assert first.action.tool_calls == [{"id": "call_1", "name": "grep", "arguments": {"pattern": "port"}}]
    # As an OpenAI client would send it back.
    second = await gateway.turn([*PROMPT, wire_message(first.message), result(first, "etc/a")], TOOLS)
    assert (second.finish_reason, second.message["content"]) == ("stop", "done")
    (branch,) = gateway.history.branches
    assert branch.ids.tolist() == policy.returned[1][0] + policy.returned[1][1].token_ids
    assert (
        policy.returned[1][0][: len(policy.returned[0][0]) + 12]
        == policy.returned[0][0] + policy.returned[0][1].token_ids
    )
    assert (second.prompt_tokens, second.completion_tokens) == (len(policy.returned[1][0]), 5)
    columns = branch.columns()
    sampled = columns.turn >= 0
    assert np.count_nonzero(sampled) == 17
    np.testing.assert_allclose(columns.logprobs[sampled], -np.flatnonzero(sampled) / 1000, rtol=1e-6)
    assert gateway.tool_names == ["grep"]
    assert set(columns.tool[columns.body & (columns.message_role == 4)]) == {0}


async def test_a_changed_assistant_message_forks_instead_of_corrupting(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, "one two<|im_end|>", "x<|im_end|>")
    gateway = session(tokenizer, policy)
    await gateway.turn(PROMPT)
    follow = {"role": "user", "content": "and?"}
    turn = await gateway.turn([*PROMPT, {"role": "assistant", "content": "one  two"}, follow])
    assert turn.branch == 1
    old, new = gateway.history.branches
    assert tokenizer.decode(old.ids).endswith("one two<|im_end|>")
    assert "one  two<|im_end|>\n<|im_start|>user\nand?" in tokenizer.decode(new.ids)
    shared = len(policy.returned[0][0]) + len("one ")
    assert old.ids[:shared] == new.ids[:shared]
    a, b = old.columns(), new.columns()
    np.testing.assert_array_equal(a.origin[:shared], b.origin[:shared])
    assert (b.turn[shared - 4 : shared] == 0).all()
    assert (b.turn[shared:-2] == -1).all()
    # The first branch goes on as if nothing had happened.
    again = await gateway.turn([*PROMPT, {"role": "assistant", "content": "one two"}, follow])
    assert again.branch == 0


async def test_a_second_answer_to_the_same_place_shares_the_tokens_before_it(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, GREP, "a<|im_end|>", "b<|im_end|>")
    gateway = session(tokenizer, policy)
    first = await gateway.turn(PROMPT, TOOLS)
    history = [*PROMPT, first.message]
    left = await gateway.turn([*history, result(first, "x")], TOOLS)
    right = await gateway.turn([*history, result(first, "y")], TOOLS)
    assert (left.branch, right.branch) == (0, 1)
    a, b = (branch.columns() for branch in gateway.history.branches)
    turn_end = len(policy.returned[0][0]) + 12
    np.testing.assert_array_equal(a.origin[:turn_end], b.origin[:turn_end])
    assert (b.turn[turn_end - 12 : turn_end] == 0).all()


async def test_the_same_request_again_is_a_branch_that_can_go_on(tokenizer: TextTokenizer) -> None:
    # A double space, which rendering the call anew would not reproduce.
    call = '<tool_call>\n{"name":  "grep", "arguments": {}}\n</tool_call><|im_end|>'
    policy = policy_of(tokenizer, "a<|im_end|>", call, "c<|im_end|>")
    gateway = session(tokenizer, policy, codec=RenderersCodec(tokenizer, "qwen3"), sampling=SamplingConfig())
    await gateway.turn(PROMPT)
    again = await gateway.turn(PROMPT)
    assert again.branch == 1
    result = {"role": "tool", "content": "x", "name": "grep"}
    assert (await gateway.turn([*PROMPT, again.message, result])).branch == 1
    assert len(gateway.history.branches) == 2


async def test_arguments_are_compared_by_value(tokenizer: TextTokenizer) -> None:
    gateway = session(tokenizer, policy_of(tokenizer, GREP, "a<|im_end|>"))
    first = await gateway.turn(PROMPT, TOOLS)
    echoed = wire_message(first.message)
    echoed["tool_calls"][0]["function"]["arguments"] = '{ "pattern":"port" }'
    echoed["tool_calls"][0]["id"] = "renumbered"
    second = await gateway.turn(
        [*PROMPT, echoed, {"role": "tool", "tool_call_id": "renumbered", "content": "x"}], TOOLS
    )
    assert second.branch == 0
    assert gateway.tool_names == ["grep"]


async def test_other_tools_are_another_branch(tokenizer: TextTokenizer) -> None:
    gateway = session(tokenizer, policy_of(tokenizer, "a<|im_end|>"))
    await gateway.turn(PROMPT, TOOLS)
    turn = await gateway.turn([*PROMPT, {"role": "assistant", "content": "a"}, *PROMPT], [])
    assert turn.branch == 1


async def test_calls_of_one_branch_wait_and_others_run_side_by_side(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, "a<|im_end|>")
    gateway = session(tokenizer, policy)
    await gateway.turn(PROMPT)
    policy.gate.clear()
    longer = [*PROMPT, {"role": "assistant", "content": "a"}]
    left = asyncio.create_task(gateway.turn([*longer, {"role": "user", "content": "l"}]))
    right = asyncio.create_task(gateway.turn([*longer, {"role": "user", "content": "r"}]))
    other = asyncio.create_task(gateway.turn([{"role": "user", "content": "side"}]))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(policy.calls) == 3  # the first turn, left, and the side call; right waits for left
    policy.gate.set()
    turns = await asyncio.wait_for(asyncio.gather(left, right, other), 60)
    assert turns[0].branch == 0
    assert len({turn.branch for turn in turns}) == 3
    assert sorted(turn.number for turn in turns) == [1, 2, 3]


async def test_a_failed_turn_leaves_no_trace_and_can_be_repeated(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, "a<|im_end|>")
    policy.errors.append(EpisodeError(ErrorKind.PROVIDER, "gone"))
    gateway = session(tokenizer, policy)
    with pytest.raises(EpisodeError, match="gone"):
        await gateway.turn(PROMPT)
    assert gateway.facts.failure is not None
    assert gateway.history.branches == []
    assert (await gateway.turn(PROMPT)).branch == 0
    assert len(gateway.facts.aborted) == 1


async def test_the_completion_is_clamped_to_the_room_left(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, "a" * 200)
    gateway = session(tokenizer, policy, max_model_len=34)
    turn = await gateway.turn(PROMPT)
    assert policy.calls[0]["max_tokens"] == 10
    assert (turn.finish_reason, turn.action.truncated) == ("length", True)
    with pytest.raises(PromptTooLongError, match="at most 33"):
        await gateway.turn([*PROMPT, turn.message, {"role": "user", "content": "?"}])
    assert gateway.facts.prompt_too_long
    assert len(policy.calls) == 1


async def test_a_closed_session_reaches_no_engine(tokenizer: TextTokenizer) -> None:
    policy = policy_of(tokenizer, "a<|im_end|>")
    gateway = session(tokenizer, policy)
    policy.gate.clear()
    running = asyncio.create_task(gateway.turn(PROMPT))
    await asyncio.wait_for(policy.arrived.wait(), 60)
    await gateway.close()
    assert policy.cancelled == 1
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(SessionClosedError):
        await gateway.turn(PROMPT)
    assert len(policy.calls) == 1


async def test_turns_are_limited(tokenizer: TextTokenizer) -> None:
    gateway = session(tokenizer, policy_of(tokenizer, "a<|im_end|>"), max_turns=1)
    await gateway.turn(PROMPT)
    with pytest.raises(TurnLimitError, match="maxTurns"):
        await gateway.turn(PROMPT)
    assert gateway.facts.turn_limit_hit


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "robot", "content": "x"}, r"messages\[0\].role: found 'robot', accepted are system"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            r"messages\[0\].content: not supported yet: .*'image_url'",
        ),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, r"messages\[0\].tool_calls\[0\]: .*function.name"),
    ],
)
async def test_unusable_messages_are_named(tokenizer: TextTokenizer, message: dict, problem: str) -> None:
    gateway = session(tokenizer, policy_of(tokenizer, "a<|im_end|>"))
    with pytest.raises(MessageError, match=problem):
        await gateway.turn([message])


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "grep", "arguments": {"pattern": "\\ud83d"}}',
        '{"name": "gr\\ud83d", "arguments": {}}',
        '{"name": "grep", "arguments": {"pattern": ' + "9" * 30 + "}}",
        '{"name": "grep", "arguments": {"pattern": ' + "9" * 5000 + "}}",
        '{"name": "grep", "arguments": {"pattern": ' + "[" * 5000 + "}}",
        '{"name": ["grep"], "arguments": {}}',
        '{"name": {"grep": 1}, "arguments": {}}',
        '{"name": 5, "arguments": {}}',
    ],
    ids=["surrogate", "surrogate-name", "64-bits", "digits", "deep", "list-name", "object-name", "number-name"],
)
async def test_a_call_that_cannot_reach_a_tool_is_malformed_and_ends_nothing(
    tokenizer: TextTokenizer, tmp_path: Path, call: str
) -> None:
    folder = write_byte_tokenizer(tmp_path / "Qwen3-4B")
    codec = build_codec(ModelConfig(path=str(folder), dtype="float32", max_model_len=32768, renderer="qwen3"))
    policy = policy_of(tokenizer, f"<tool_call>\n{call}\n</tool_call><|im_end|>", "done<|im_end|>")
    sampling = SamplingConfig(max_completion_tokens=8192)
    gateway = session(tokenizer, policy, codec=codec, sampling=sampling, max_model_len=32768)
    turn = await gateway.turn(PROMPT, TOOLS)
    assert (turn.malformed, turn.action.tool_calls, turn.finish_reason) == (True, [], "stop")
    again = [{"role": "user", "content": "again"}]
    assert (await gateway.turn([*PROMPT, wire_message(turn.message), *again], TOOLS)).action.text == "done"


async def test_an_aborted_or_empty_completion_is_the_engines_fault(tokenizer: TextTokenizer) -> None:
    class Failing(ScriptedPolicy):
        async def generate(self, **_: Any) -> Generation:
            return Generation([], [], self.finish, 1, 1, "engine-0", "b")

    for finish, kind in (("abort", ErrorKind.PROVIDER), ("stop", ErrorKind.INVALID_RESPONSE)):
        policy = Failing(tokenizer, lambda _: "")
        policy.finish = finish  # type: ignore[attr-defined]
        with pytest.raises(EpisodeError) as caught:
            await session(tokenizer, policy).turn(PROMPT)
        assert caught.value.kind is kind


class RenderingEngine(ScriptedPolicy):
    """Renders by a template of its own, as vLLM would."""

    async def chat(self, *, messages: Any, **_: Any) -> ChatGeneration:
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"
        prompt = self._tokenizer.encode(text)
        generation = await self.generate(
            episode="e", prompt_ids=prompt, sampling=SamplingConfig(), max_tokens=8, stop_ids=[]
        )
        content = self._tokenizer.decode(generation.token_ids)
        return ChatGeneration(prompt, generation, {"role": "assistant", "content": content})

    async def count_tokens(self, *, messages: Any, **_: Any) -> int:
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"
        return len(self._tokenizer.encode(text))


async def test_engine_rendered_turns_link_by_exact_ids(tokenizer: TextTokenizer) -> None:
    policy = RenderingEngine(tokenizer, lambda text: f"t{text.count('[user]')}")
    gateway = session(tokenizer, policy, codec=EngineRendering())
    first = await gateway.turn(PROMPT)
    second = await gateway.turn([*PROMPT, first.message, {"role": "user", "content": "on"}])
    assert second.branch == 0
    assert tokenizer.decode(gateway.history.branches[0].ids) == "[user]port?[assistant]t1[user]on[assistant]t2"
    forked = await gateway.turn([*PROMPT, {"role": "assistant", "content": "T1"}, {"role": "user", "content": "on"}])
    assert forked.branch == 1
    columns = gateway.history.branches[0].columns()
    assert not columns.body[columns.turn < 0].any()


def routes(gateway: GatewaySession, branch: int) -> list[list[int]]:
    """Of each token of a branch whose experts are known: its place, and the call that told of it."""
    whole = gateway.history.branches[branch].routed.whole()
    return [] if whole is None else whole[:, 0].tolist()


async def test_a_token_has_the_experts_of_the_call_that_computed_it_first(tokenizer: TextTokenizer) -> None:
    """The last token of a turn is computed by the next one; a fork has what is known of the tokens that it shares."""
    policy = policy_of(tokenizer, GREP, "done<|im_end|>", "else<|im_end|>")
    policy.routes = True
    gateway = session(tokenizer, policy)
    first = await gateway.turn(PROMPT, TOOLS)
    end = first.prompt_tokens + first.completion_tokens
    assert routes(gateway, 0) == [[place, 0] for place in range(end - 1)]
    talk = [*PROMPT, wire_message(first.message)]
    second = await gateway.turn([*talk, result(first, "etc/a")], TOOLS)
    whole = second.prompt_tokens + second.completion_tokens
    told = [[place, 0] for place in range(end - 1)] + [[place, 1] for place in range(end - 1, whole - 1)]
    assert routes(gateway, 0) == told
    third = await gateway.turn([*talk, result(first, "etc/b")], TOOLS)
    assert third.branch == 1
    kept = len(gateway.history.branches[0].ids[:end])
    forked = routes(gateway, 1)
    assert forked[:kept] == told[:kept]
    assert forked[-1] == [third.prompt_tokens + third.completion_tokens - 2, 2]
    assert [place for place, _ in forked] == list(range(len(forked)))
    assert {call for _, call in forked[kept:]} == {2}
    assert routes(gateway, 0) == told


async def test_nothing_is_known_of_experts_that_no_engine_tells(tokenizer: TextTokenizer) -> None:
    """An engine that begins to tell is asked for all; an evaluation asks for none."""
    policy = policy_of(tokenizer, GREP, "done<|im_end|>")
    gateway = session(tokenizer, policy)
    first = await gateway.turn(PROMPT, TOOLS)
    assert routes(gateway, 0) == []
    policy.routes = True
    second = await gateway.turn([*PROMPT, wire_message(first.message), result(first, "etc/a")], TOOLS)
    assert routes(gateway, 0) == [[place, 1] for place in range(second.prompt_tokens + second.completion_tokens - 1)]
    judged = session(tokenizer, policy, evaluation=True)
    await judged.turn(PROMPT, TOOLS)
    assert routes(judged, 0) == []
