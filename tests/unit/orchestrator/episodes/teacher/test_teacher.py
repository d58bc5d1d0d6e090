"""Requests to a teacher: what it says, how it judges, and how one that cannot is refused at the start."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from echorl_core.config import SamplingConfig, TeacherConfig
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.endpoints.chat import endpoint_says
from echorl_orchestrator.endpoints.client import EndpointClient, EndpointError
from echorl_orchestrator.episodes.teacher.logprobs import check_judges, judged, parse_prefill, teacher_logprobs
from echorl_orchestrator.episodes.teacher.play import check_speaks
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_testing.orchestrator.fake_teacher import FakeTeacher, teaching
from echorl_testing.orchestrator.scripted_player import A, C, sample
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("model")), name="bytes")


@asynccontextmanager
async def asked(teacher: FakeTeacher, key: str | None = None, **changes: Any) -> AsyncIterator[EndpointClient]:
    async with teaching(teacher):
        client = EndpointClient(teacher.config(**changes), key)
        await client.start()
        try:
            yield client
        finally:
            await client.close()


def alike(tokenizer: TextTokenizer, **changes: Any) -> FakeTeacher:
    """A teacher with the policy's tokenizer."""
    return FakeTeacher(decode=lambda token: tokenizer.decode([token]), **changes)


async def test_a_message_with_a_call_is_read() -> None:
    function = {"name": "grep", "arguments": '{"pattern": "port"}'}
    call = {"id": "c1", "type": "function", "function": function}
    teacher = FakeTeacher(says=lambda messages: {"tool_calls": [call], "reasoning_content": "hm"})
    tool = {"type": "function", "function": {"name": "grep"}}
    async with asked(teacher) as client:
        sampling = SamplingConfig(temperature=0.7)
        said = await endpoint_says(client, HELLO, [tool], sampling, max_tokens=9)
    assert said.message["tool_calls"] == [call]
    assert said.message["reasoning_content"] == "hm"
    assert (said.truncated, said.completion_tokens) == (False, 7)
    [request] = teacher.requests
    assert request == {
        "model": "big", "messages": HELLO, "temperature": 0.7, "max_completion_tokens": 9, "tools": [tool]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("says", "reason"), [({"content": ""}, "an empty message"), ({"content": 3}, "no chat completion")]
)
async def test_what_is_no_message_is_an_invalid_response(says: dict[str, Any], reason: str) -> None:
    async with asked(FakeTeacher(says=lambda messages: says)) as client:
        with pytest.raises(EndpointError, match=reason) as caught:
            await endpoint_says(client, HELLO, [], SamplingConfig(), max_tokens=9)
    assert caught.value.kind is ErrorKind.INVALID_RESPONSE


async def test_a_busy_teacher_is_asked_again() -> None:
    teacher = FakeTeacher(failures=[503, 429])
    async with asked(teacher) as client:
        said = await endpoint_says(client, HELLO, [], SamplingConfig(), max_tokens=9)
    assert said.message["content"] == "ok"
    assert len(teacher.requests) == 3


async def test_a_teacher_that_stays_busy_fails_the_episode() -> None:
    async with asked(FakeTeacher(failures=[503] * 50), busy_deadline_s=0.6) as client:
        with pytest.raises(EndpointError, match="HTTP 503: not now") as caught:
            await endpoint_says(client, HELLO, [], SamplingConfig(), max_tokens=9)
    assert caught.value.kind is ErrorKind.PROVIDER


async def test_nobody_at_the_address_is_told_by_the_start_deadline() -> None:
    config = TeacherConfig(url="http://127.0.0.1:9/v1", model="big", start_deadline_s=0.1)
    client = EndpointClient(config)
    await client.start()
    with pytest.raises(BadInputError, match=r"spec.algorithm.teacher: teacher http://127.0.0.1:9/v1/chat/completions"):
        await check_speaks(client)
    await client.close()


async def test_a_refused_key_is_not_told() -> None:
    async with asked(FakeTeacher(key="right"), key="s3cret-key") as client:
        with pytest.raises(BadInputError, match=r"HTTP 401: Incorrect API key provided: \*\*\*") as caught:
            await check_speaks(client)
    assert "s3cret" not in str(caught.value)


async def test_the_right_key_and_model_pass() -> None:
    async with asked(FakeTeacher(key="right"), key="right") as client:
        await check_speaks(client)


async def test_logprobs_stand_at_their_tokens() -> None:
    async with asked(FakeTeacher(logprob=lambda place, token: -place - token / 4)) as client:
        found = await teacher_logprobs(client, [5, 6, 7])
    assert found.dtype == np.float32
    assert found.tolist() == [0.0, -2.5, -3.75]


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        (None, "prompt_logprobs for 0 of 3 tokens"),
        ([None, {"6": {"logprob": -1.0}}], "prompt_logprobs for 2 of 3 tokens"),
        ([None, {"6": {"logprob": -1.0}}, {"8": {"logprob": -1.0}}], "no logprob of token 7 at position 2"),
        ([None, {"6": {"logprob": -1.0}}, {"7": {"logprob": None}}], "logprob nan at position 2"),
        ([None, {"6": {"logprob": -9999.0}}, {"7": {"logprob": -1.0}}], "logprob -9999.0 at position 1"),
        ([None, {"6": {"logprob": -1.0}}, {"7": {"logprob": 3.5}}], "logprob 3.5 at position 2"),
    ],
)
def test_an_answer_without_every_logprob_is_refused(positions: Any, reason: str) -> None:
    raw = json.dumps({"choices": [{"prompt_logprobs": positions}]}).encode()
    with pytest.raises(EndpointError, match=f"t: .*{reason}"):
        parse_prefill(raw, [5, 6, 7], "t")


async def test_samples_are_judged_where_something_of_them_trains() -> None:
    trained, silent = sample([C, A, A]), sample([C, C, C])
    async with asked(FakeTeacher()) as client:
        first, second = await judged(client, [trained, silent])
    assert first.ref_logprobs is not None
    assert first.ref_logprobs.shape == first.token_ids.shape
    assert second.ref_logprobs is None


async def test_a_teacher_of_the_same_tokenizer_passes_with_one_request(tokenizer: TextTokenizer) -> None:
    teacher = alike(tokenizer, vocabulary=265)
    async with asked(teacher) as client:
        await check_judges(client, tokenizer)
    assert len(teacher.requests) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"with_logprobs": False}, "prompt_logprobs for 0 of"),
        ({"vocabulary": 200}, "HTTP 400: Token id 264 is out of vocabulary"),
        ({"decode": lambda token: f"<{token}>"}, "to the policy"),
        ({"failures": [404]}, "HTTP 404"),
    ],
)
async def test_a_teacher_that_cannot_judge_is_refused_at_the_start(
    tokenizer: TextTokenizer, changes: dict[str, Any], reason: str
) -> None:
    teacher = alike(tokenizer)
    for name, value in changes.items():
        setattr(teacher, name, value)
    async with asked(teacher) as client:
        with pytest.raises(BadInputError, match=rf"spec.algorithm.teacher: .*{reason}.*; accepted is a vLLM server"):
            await check_judges(client, tokenizer)


async def test_a_teacher_that_still_loads_is_waited_for(tokenizer: TextTokenizer) -> None:
    async with asked(alike(tokenizer, failures=[503])) as client:
        await check_judges(client, tokenizer)
