"""Penalties of an eval reach whoever is asked for tokens, and are left out where an endpoint may not know them."""

import msgspec

from echorl_core.config import SamplingConfig
from echorl_orchestrator.endpoints.chat import endpoint_chat_body
from echorl_orchestrator.engines.bodies import generate_body

ASKED = [{"role": "user", "content": "hello"}]
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": -0.25, "repetition_penalty": 1.1}
SAMPLING = SamplingConfig(**PENALTIES)


def test_engines_are_sent_all_of_them() -> None:
    raw = generate_body(prompt_ids=[1], sampling=SAMPLING, max_tokens=4, stop_ids=[2])
    assert msgspec.json.decode(raw)["sampling_params"].items() >= PENALTIES.items()


def test_an_endpoint_is_sent_those_that_change_something() -> None:
    asked = msgspec.json.decode(endpoint_chat_body("big", ASKED, [], SAMPLING, 4))
    assert asked.items() >= PENALTIES.items()
    plain = msgspec.json.decode(endpoint_chat_body("big", ASKED, [], SamplingConfig(), 4))
    assert not plain.keys() & PENALTIES.keys()
    one = msgspec.json.decode(endpoint_chat_body("big", ASKED, [], SamplingConfig(presence_penalty=0.5), 4))
    assert one.keys() & PENALTIES.keys() == {"presence_penalty"}
