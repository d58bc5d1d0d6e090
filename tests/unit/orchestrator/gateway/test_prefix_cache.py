"""What a session need not look at again."""

from typing import Any

from echorl_orchestrator.gateway.history import History
from echorl_orchestrator.gateway.prefix_cache import PrefixCache


def kept(past: PrefixCache, history: History, messages: list[dict[str, Any]], tools: str = "") -> int:
    """How many messages were known; all are then."""
    canonical, nodes = past.prefix(messages, tools)
    known = len(nodes)
    canonical += [dict(message) for message in messages[known:]]
    past.keep(messages, tools, canonical, history.path(tools, canonical[known:], nodes))
    return known


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_the_same_objects_are_known_and_equal_ones_are_not() -> None:
    past, history, talk = PrefixCache(), History(), [user("a"), user("b")]
    assert kept(past, history, talk) == 0
    talk.append(user("c"))
    assert kept(past, history, talk) == 2
    assert kept(past, history, [user("a"), *talk[1:]]) == 0


def test_a_message_whose_content_was_changed_is_new_and_all_after_it() -> None:
    past, history, talk = PrefixCache(), History(), [user("a"), user("b"), user("c")]
    kept(past, history, talk)
    talk[1]["content"] = "other"
    assert kept(past, history, talk) == 1
    assert kept(past, history, talk) == 3


def test_a_shorter_conversation_and_one_that_branches_off() -> None:
    past, history, talk = PrefixCache(), History(), [user("a"), user("b"), user("c")]
    kept(past, history, talk)
    assert kept(past, history, talk[:1]) == 1
    assert kept(past, history, talk) == 1
    assert kept(past, history, [*talk[:2], user("d"), user("e")]) == 2


def test_other_tools_are_another_conversation() -> None:
    past, history, talk = PrefixCache(), History(), [user("a")]
    kept(past, history, talk, "one")
    assert kept(past, history, talk, "other") == 0
