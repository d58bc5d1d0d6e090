"""A file of supervised fine-tuning becomes a run of mode sft on given conversations."""

import pytest

from echorl_cli.convert.problem import ConversionError
from echorl_manifest import problems
from echorl_testing.manifests.prime_rl import converted_copy

SUPERVISED = {"model": {"name": "a/b"}, "data": {"name": "acme/words", "seq_len": 512, "batch_size": 4}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("words.jsonl", {"name": "words", "type": "builtin:messages", "args": {"path": "words.jsonl"}}),
        ("import:ours.words:given", {"name": "words", "type": "import:ours.words:given"}),
    ],
)
def test_a_data_set_is_a_file_of_conversations_or_code_of_the_user(given, expected):
    document = converted_copy(SUPERVISED, types={"acme/words": given}).document
    assert problems(document) == []
    assert document["spec"]["environments"] == {"train": [expected]}
    assert document["spec"]["algorithm"] == {"mode": "sft", "tokenBatchSize": 2048}
    assert document["spec"]["model"] == {"name": "a/b", "maxModelLen": 512}


def test_a_data_set_that_is_a_file_needs_no_type():
    tree = {"data": {"source": [{"dataset": "data/words.jsonl"}]}}
    [source] = converted_copy(tree, types={}).document["spec"]["environments"]["train"]
    assert source["args"] == {"path": "data/words.jsonl"}


@pytest.mark.parametrize(
    ("masks", "roles"),
    [({"tool": True}, ["assistant", "tool"]), ({"assistant": False, "user": True}, ["user"]), ({}, None)],
)
def test_roles_that_train(masks, roles):
    tree = {"data": {"source": [{"dataset": "words.jsonl"}], "loss_mask": masks}}
    assert converted_copy(tree).document["spec"]["algorithm"].get("sft") == (roles and {"trainRoles": roles})


def test_data_sets_without_a_file_are_one_statement():
    tree = {"data": {"source": [{"dataset": "acme/words"}, {"dataset": "acme/sums"}]}}
    with pytest.raises(ConversionError) as caught:
        converted_copy(tree, types={})
    assert str(caught.value).startswith(
        "--environment: a run reads no data sets of a hub; found no conversations for acme/words, acme/sums; "
        "accepted: --environment acme/words=FILE.jsonl, "
    )
    assert "\n" not in str(caught.value)
