"""Whatever callers send, a branch's tokens are those the engine saw and said, in that order."""

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_core.config import ModelConfig, SamplingConfig
from echorl_core.wire.batch import ARRAY_FIELDS, TokenRole
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episodes.branch_verdicts import unused_turns
from echorl_orchestrator.episodes.samples import Owner, build_samples
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.dialect_clients import CLIENTS, Talk
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer

OWNER = Owner("e", "g", "env", 1, 1)
TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"properties": {"pattern": {}}}}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_tokenizer(tmp_path_factory.mktemp("model"))


move = st.tuples(
    st.sampled_from(["go on", "go back", "drift", "start anew"]),
    st.lists(st.integers(0, 264), min_size=1, max_size=12),
    st.booleans(),
    st.text("ab \n", max_size=6),
)


async def play(session: GatewaySession, policy: Any, moves: list[Any]) -> None:
    talks: list[list[dict[str, Any]]] = []
    for kind, said, closed, text in moves:
        talk = copy.deepcopy(talks[-1]) if talks and kind != "start anew" else []
        if kind == "go back" and talk:
            talk = copy.deepcopy(talks[0])
        if kind == "drift" and talk:
            talk[-1]["content"] += " "
        calls = talk[-1].get("tool_calls", []) if talk else []
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
        talk += answers or [{"role": "user", "content": text}]
        policy.next = [*said, policy.stop] if closed else said
        turn = await session.turn(talk, TOOLS)
        talks.append([*talk, turn.message])


@settings(deadline=None, max_examples=80)
@given(moves=st.lists(move, min_size=1, max_size=6), renderer=st.sampled_from(["compact", "qwen3"]))
def test_rows_are_what_the_engine_returned(folder: Path, moves: list[Any], renderer: str) -> None:
    codec = build_codec(ModelConfig(path=str(folder), dtype="float32", max_model_len=4096, renderer=renderer))
    policy: Any = ScriptedPolicy(TextTokenizer(folder, name="bytes"), lambda _: policy.next)
    policy.stop = codec.stop_ids[0]
    session = GatewaySession(SessionSpec("k", "e", codec, policy, SamplingConfig(), 8192))
    asyncio.run(play(session, policy, moves))

    rows = {tuple(prompt + generation.token_ids): generation for prompt, generation in policy.returned}
    seen: set[int] = set()
    built = build_samples(session.history.branches, session.tool_names, OWNER, reward=1.0, max_branches=8, echo=None)
    for branch, sample in zip(session.history.branches, built.samples, strict=True):
        # The whole branch is the last request that was made on it, with its answer.
        generation = rows[tuple(branch.ids)]
        assert sample.token_ids.tolist() == branch.ids.tolist()
        last = len(generation.token_ids)
        np.testing.assert_array_equal(sample.logprobs[-last:], np.array(generation.logprobs, np.float32))
        assert {len(getattr(sample, name)) for name in ARRAY_FIELDS} == {len(branch.ids)}
        action = sample.role == TokenRole.ACTION
        # Every action token carries the logprob that it was given at its place.
        np.testing.assert_allclose(sample.logprobs[action], -np.flatnonzero(action) / 1000, rtol=1e-5)
        trained = branch.columns().origin[sample.rl_weight > 0].tolist()
        assert seen.isdisjoint(trained)
        seen.update(trained)
        assert not sample.rl_weight[~action].any()
    sampled = sum(len(generation.token_ids) for _, generation in policy.returned)
    assert len(seen) == built.kept_tokens == sampled


KINDS = ["go on", "go on", "go back", "drift", "trim", "start anew", "retry", "hang up", "get no answer"]
wire_move = st.tuples(
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 264), min_size=1, max_size=12) | st.just([]),
    st.booleans(),
    st.text("ab \n", max_size=6),
)


async def talk_over(client: Any, session: GatewaySession, policy: Any, moves: list[Any]) -> None:
    talks: list[Talk] = []
    sent: Talk = []
    for kind, said, closed, text in moves:
        talk = talks[0 if kind == "go back" else -1] if talks and kind != "start anew" else []
        if kind in ("drift", "trim"):
            talk = client.retold(talk, str.strip if kind == "trim" else "again, {}".format)
        sent = sent if kind == "retry" and sent else client.told(talk, text)
        body = json.loads(json.dumps(client.body(sent)))
        asked = client.dialect.read(body, session.spec)
        policy.next = (said or policy.call) + ([policy.stop] if closed else [])
        task = asyncio.ensure_future(session.turn(asked.messages, asked.tools, asked.sampling))
        if kind == "hang up":
            policy.gate.clear()
            policy.arrived.clear()
            await policy.arrived.wait()
            task.cancel()
            await asyncio.wait({task})
            policy.gate.set()
            continue
        turn = await task
        if kind == "get no answer":
            session.history.undelivered(turn.number)
            continue
        client.dialect.events(session, turn, body)
        talks.append(client.heard(sent, json.loads(json.dumps(client.dialect.answer(session, turn)))))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.dialect.path)
@settings(deadline=None, max_examples=60)
@given(moves=st.lists(wire_move, min_size=1, max_size=7), renderer=st.sampled_from(["compact", "qwen3"]))
def test_what_trains_was_sampled_there_and_trains_once(
    folder: Path, client: Any, moves: list[Any], renderer: str
) -> None:
    codec = build_codec(ModelConfig(path=str(folder), dtype="float32", max_model_len=4096, renderer=renderer))
    tokenizer = TextTokenizer(folder, name="bytes")
    policy: Any = ScriptedPolicy(tokenizer, lambda _: policy.next)
    policy.stop = codec.stop_ids[0]
    call = "grep port" if renderer == "compact" else '\n{"name": "grep", "arguments": {"pattern": "port"}}\n'
    policy.call = tokenizer.encode(f"look <tool_call>{call}</tool_call>")
    session = GatewaySession(SessionSpec("k", "e", codec, policy, SamplingConfig(), 8192))
    asyncio.run(talk_over(client, session, policy, moves))

    branches, unused = session.history.branches, unused_turns(session.history.turns)
    for left_out in ({}, unused):
        built = build_samples(
            branches, session.tool_names, OWNER, reward=1.0, max_branches=8, echo=None, unused=left_out
        )
        seen: set[int] = set()
        for sample in built.samples:
            branch = branches[sample.branch]
            columns = branch.columns()
            for place in np.flatnonzero(sample.rl_weight):
                prompt, generation = policy.returned[columns.turn[place]]
                # The engine said this token, with this logprob, after exactly what stands before it.
                assert prompt + generation.token_ids[: place - len(prompt) + 1] == branch.ids[: place + 1].tolist()
                assert sample.logprobs[place] == np.float32(generation.logprobs[place - len(prompt)])
                assert columns.turn[place] not in left_out
            trained = columns.origin[sample.rl_weight > 0].tolist()
            assert seen.isdisjoint(trained)
            seen.update(trained)
        if not left_out and len(branches) <= 8:
            assert len(seen) == sum(len(generation.token_ids) for _, generation in policy.returned)
