"""Which turns of an agent train: agents as scripts, each against a real session with a real codec."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.config import EchoConfig, EchoRoleConfig, SamplingConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episodes.branch_verdicts import Unused, unused_turns
from echorl_orchestrator.episodes.samples import Built, Owner, build_samples
from echorl_orchestrator.gateway.history import TurnPlace
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec, Turn
from echorl_testing.orchestrator.scripted_policy import ScriptedPolicy, write_byte_tokenizer

TOOLS = [{"type": "function", "function": {"name": "grep", "parameters": {"properties": {"pattern": {}}}}}]
TASK = [{"role": "system", "content": "you work"}, {"role": "user", "content": "port?"}]
TITLE = [{"role": "system", "content": "you name talks"}, {"role": "user", "content": "port?"}]
SIDE, RACED = Unused.SIDE_CALL, Unused.RACED


class Agent:
    """Calls a session; every answer of the engine is another one."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = TextTokenizer(write_byte_tokenizer(folder), name="bytes")
        self._said = 0
        policy = ScriptedPolicy(self.tokenizer, lambda _: self._next())
        spec = SessionSpec(
            "k", "e", CompactCodec(self.tokenizer), policy, SamplingConfig(max_completion_tokens=64), 999
        )
        self.session = GatewaySession(spec)

    def _next(self) -> str:
        self._said += 1
        return f"answer {self._said - 1}<|im_end|>"

    async def asks(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> Turn:
        return await self.session.turn(messages, tools)

    async def goes_on(
        self, messages: Sequence[dict[str, Any]], turn: Turn, text: str, tools: Sequence[dict[str, Any]] = ()
    ) -> tuple[list[dict[str, Any]], Turn]:
        longer = [*messages, turn.message, {"role": "user", "content": text}]
        return longer, await self.asks(longer, tools)

    @property
    def unused(self) -> dict[int, Unused]:
        return unused_turns(self.session.history.turns)

    def built(self, *, unused: bool = True, echo: EchoConfig | None = None) -> Built:
        history = self.session.history
        left_out = self.unused if unused else {}
        owner = Owner("e", "g", "env", 1, 1)
        return build_samples(history.branches, [], owner, reward=1.0, max_branches=8, echo=echo, unused=left_out)

    def trained(self, built: Built) -> list[str]:
        """What of each sample trains, as text."""
        texts = [self.tokenizer.decode(one.token_ids[one.rl_weight != 0].tolist()) for one in built.samples]
        return [text.replace("<|im_end|>", ".") for text in texts]


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


async def test_a_title_beside_the_work_does_not_train(agent: Agent) -> None:
    first = await agent.asks(TASK)
    await agent.asks(TITLE)
    await agent.goes_on(TASK, first, "sure?")
    assert agent.unused == {1: SIDE}
    built = agent.built(echo=EchoConfig(user=EchoRoleConfig(alpha=1.0)))
    assert agent.trained(built) == ["answer 0.answer 2."]
    # Nor does its prompt by ECHO.
    (sample,) = built.samples
    assert agent.tokenizer.decode(sample.token_ids[sample.ce_weight != 0].tolist()) == "port?sure?"
    assert (built.unused_branches, built.dropped_branches) == (1, 0)
    assert agent.trained(agent.built(unused=False)) == ["answer 0.answer 2.", "answer 1."]


async def test_a_title_at_the_end_is_not_the_work(agent: Agent) -> None:
    await agent.asks(TASK, TOOLS)
    await agent.asks([{"role": "user", "content": "name this"}])
    assert agent.unused == {1: SIDE}


async def test_a_sub_agent_trains(agent: Agent) -> None:
    """One turn with tools, or several without: it works, whatever its first message is."""
    await agent.asks(TASK, TOOLS)
    await agent.asks([{"role": "user", "content": "look into etc"}], TOOLS)
    talk = [{"role": "user", "content": "think it over"}]
    await agent.goes_on(talk, await agent.asks(talk), "and?")
    assert agent.unused == {}


async def test_what_a_compaction_replaced_trains_and_so_does_what_follows(agent: Agent) -> None:
    first = await agent.asks(TASK)
    longer, second = await agent.goes_on(TASK, first, "sure?")
    await agent.goes_on(longer, second, "sum it up")
    await agent.asks([TASK[0], {"role": "user", "content": "so far: port 22"}])
    assert agent.unused == {}


async def test_independent_calls_of_one_turn_train_where_nothing_tells_one_from_the_other(agent: Agent) -> None:
    for step in ("plan", "write", "check"):
        await agent.asks([{"role": "user", "content": step}])
    assert agent.unused == {}


async def test_of_answers_to_one_prompt_the_one_that_was_gone_on_from_trains(agent: Agent) -> None:
    first = await agent.asks(TASK)
    again = await agent.asks(TASK)
    longer, second = await agent.goes_on(TASK, again, "sure?")
    await agent.goes_on(TASK, again, "sure?")
    await agent.goes_on(longer, second, "then go")
    assert first.number == 0
    assert agent.unused == {0: RACED, 3: RACED}
    built = agent.built()
    assert agent.trained(built) == ["answer 1.answer 2.answer 4."]
    assert built.unused_branches == 2


async def test_of_answers_that_nobody_went_on_from_the_last_one_trains(agent: Agent) -> None:
    await asyncio.gather(*(agent.asks(TASK) for _ in range(3)))
    assert agent.unused == {0: RACED, 1: RACED}
    assert agent.trained(agent.built()) == ["answer 2."]


async def test_two_answers_that_were_both_gone_on_from_train(agent: Agent) -> None:
    for turn in [await agent.asks(TASK) for _ in range(2)]:
        await agent.goes_on(TASK, turn, "sure?")
    assert agent.unused == {}


async def test_a_raced_answer_ends_a_branch_whose_turns_train_elsewhere(agent: Agent) -> None:
    """The branch of the first, unused answer holds the turn before it, which the other branch shares."""
    first = await agent.asks(TASK)
    longer, _ = await agent.goes_on(TASK, first, "sure?")
    again = await agent.asks(longer)
    await agent.goes_on(longer, again, "then go")
    assert agent.unused == {1: RACED}
    built = agent.built()
    assert agent.trained(built) == ["answer 0.answer 2.answer 3."]
    assert built.kept_tokens == int(np.count_nonzero(built.samples[0].rl_weight))


@st.composite
def sessions(draw: st.DrawFn) -> list[TurnPlace]:
    """Turns of any agent: each begins a conversation or goes on from an earlier turn, and may ask an older prompt."""
    turns: list[TurnPlace] = []
    for number in range(draw(st.integers(1, 8))):
        older = draw(st.none() | st.sampled_from(turns)) if turns else None
        if older is not None and draw(st.booleans()):
            turns.append(
                TurnPlace(number, number, older.continues, older.prompt, older.opening, has_tools=older.has_tools)
            )
            continue
        opening = ("m", draw(st.integers(0, 2))) if older is None else older.opening
        tools = draw(st.booleans()) if older is None else older.has_tools
        continues = None if older is None else older.number
        turns.append(TurnPlace(number, number, continues, number, opening, has_tools=tools))
    return turns


@given(sessions())
def test_whatever_an_agent_does_something_trains_and_stands_on_what_trains(turns: list[TurnPlace]) -> None:
    unused = unused_turns(turns)
    used = [turn for turn in turns if turn.number not in unused]
    assert used
    assert all(turn.continues not in unused for turn in used)
    # Nothing of it depends on what was said: every prompt of the work has an answer that trains.
    raced = {turn.prompt for turn in turns if unused.get(turn.number) is RACED}
    side = {turn.prompt for turn in turns if unused.get(turn.number) is SIDE}
    assert raced - side <= {turn.prompt for turn in used}
