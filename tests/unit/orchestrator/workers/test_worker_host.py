"""What a worker does with calls, without the process around it; values cross as they do between processes."""

import queue
from typing import Any

import msgspec
import pytest

from echorl_core.config import EnvironmentConfig, HookConfig
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.filters.filter_hook import inputs_of, own_matches
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_orchestrator.workers.host import Host
from echorl_orchestrator.workers.rpc import encode
from echorl_testing.orchestrator.scripted_player import outcome

DIGITS = EnvironmentConfig(name="digits", type="builtin:digits")
POOR = HookConfig(import_path="echorl_testing.orchestrator.odd_environments:poor", kwargs={"below": 0.5})


def asked(*rewards: float) -> list[dict[str, Any]]:
    """What the worker is sent of a group with these rewards."""
    ready = [
        ReadyEpisode(
            outcome(f"e{number}", reward=reward),
            "g",
            Ticket("digits", 0, 0, 0),
            advantage=reward,
            verdict=Verdict(),
            version_low=0,
            partial=False,
        )
        for number, reward in enumerate(rewards)
    ]
    frame = encode({"asked": inputs_of(ready, "digits")})
    return list(msgspec.msgpack.decode(frame[4:])["asked"])


def called(host: Host, **args: Any) -> Any:
    replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    host.submit(1, "matches", None, args, replies.put)
    return msgspec.msgpack.decode(encode(replies.get(timeout=60))[4:])["value"]


def test_own_filters_are_asked_by_the_index_of_their_rule() -> None:
    other = HookConfig(import_path=POOR.import_path, kwargs={"below": 2.0})
    host = Host(DIGITS, None, [None, POOR, other])
    assert own_matches(called(host, index=1, asked=asked(0.25, 0.75)), 1, POOR) == [True, False]
    assert own_matches(called(host, index=2, asked=asked(0.25, 0.75)), 2, other) == [True, True]


def test_what_a_filter_does_wrong_is_told_with_its_field() -> None:
    wrong = HookConfig(import_path=POOR.import_path, kwargs={"above": 0.5})
    host = Host(DIGITS, None, [wrong])
    with pytest.raises(
        BadInputError, match=r"^spec.algorithm.filters\[0\].import '.*:poor': raised TypeError: .*'above'"
    ):
        own_matches(called(host, index=0, asked=asked(0.25)), 0, wrong)


def test_a_filter_that_cannot_be_imported_refuses_the_start() -> None:
    absent = HookConfig(import_path="echorl_testing.orchestrator.odd_environments:absent")
    with pytest.raises(BadInputError, match=r"^spec.algorithm.filters\[1\].import: module .* has no 'absent'"):
        Host(DIGITS, None, [None, absent])
