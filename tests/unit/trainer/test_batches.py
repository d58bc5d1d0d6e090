"""Which tokens are scored, what is told of each, and what is refused."""

import msgspec
import numpy as np
import pytest
import torch

from echorl_core.arrays import pack, unpack
from echorl_core.wire.batch import MicroBatch, TokenRole
from echorl_testing.orchestrator.packs import document, joined
from echorl_trainer.batches import score_batch

CPU = torch.device("cpu")


def scored(micro, **other):
    options = {"sources": [("a", ""), ("b", "")], "version": 4, "vocab_size": 265, "device": CPU, **other}
    return score_batch(micro, **options)


def changed(micro, **columns):
    return msgspec.structs.replace(micro, **columns)


def at(array, index, value):
    copy = np.array(array)
    copy[index] = value
    return copy


def test_layout_of_two_documents():
    tokens = scored(joined([document(1, 5), document(2, 7)])).tokens
    assert tokens.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]
    assert tokens.cu_seqlens.tolist() == [0, 5, 12]
    assert tokens.cu_seqlens.dtype == torch.int32
    assert tokens.token_ids.dtype == tokens.rows.dtype == torch.int64
    assert tokens.max_len == 7


def test_scored_are_weighted_tokens_actions_and_environment_output():
    micro = document(1, 8)
    context, action, output = TokenRole.CONTEXT, TokenRole.ACTION, TokenRole.ENV_OUTPUT
    role = np.array([action, context, context, action, output, context, TokenRole.WARNING, context], np.uint8)
    ce = np.zeros(8, np.float32)
    ce[5] = 0.1
    batch = scored(changed(micro, role=role, rl_weight=np.zeros(8, np.float32), ce_weight=ce))
    assert batch.tokens.rows.tolist() == [3, 4, 5]
    assert batch.is_action.tolist() == [True, False, False]
    assert batch.is_env_output.tolist() == [False, True, False]
    assert batch.ce_weight.tolist() == pytest.approx([0, 0, 0.1])


def test_first_tokens_are_never_scored():
    micro = joined([document(1, 6), document(2, 1), document(3, 9)])
    role = np.full(16, TokenRole.ACTION, np.uint8)
    batch = scored(changed(micro, role=role, rl_weight=np.zeros(16, np.float32), ce_weight=np.zeros(16, np.float32)))
    assert not {0, 6, 7} & set(batch.tokens.rows.tolist())
    assert len(batch.tokens.rows) == 13


def test_only_action_tokens_of_one_current_version_are_compared():
    micro = document(1, 10, version=4)
    actions = np.flatnonzero(micro.role == TokenRole.ACTION)
    high = at(micro.version_high, actions[0], 5)
    low = at(micro.version_low, actions[1], 3)
    batch = scored(changed(micro, version_low=low, version_high=high))
    compared = batch.tokens.rows[batch.is_current].tolist()
    assert compared == actions[2:].tolist()
    assert not scored(micro, version=3).is_current.any()


def test_sources_are_numbered_by_the_given_list():
    batch = scored(joined([document(1, 6, environment="b"), document(2, 8, environment="a")]))
    assert batch.source.tolist() == [1] * 4 + [0] * 6


def test_sequences_that_train_rl_are_told_by_place_length_and_name():
    parts = [document(1, 9), document(2, 7), document(3, 9, environment="b")]
    parts[1] = changed(parts[1], rl_weight=np.zeros(7, np.float32))
    third = np.zeros(9, np.float32)
    third[8] = 0.5
    parts[2] = changed(parts[2], rl_weight=third)
    batch = scored(joined(parts))
    sequences = batch.sequences
    assert (sequences.environments, sequences.sample_ids) == (["a", "b"], ["e1/0", "e3/0"])
    assert sequences.lengths == [int((parts[0].rl_weight != 0).sum()), 1]
    assert torch.equal(sequences.rows, batch.rl_weight.nonzero()[:, 0])
    assert batch.tokens.rows[sequences.rows].tolist() == [*np.flatnonzero(parts[0].rl_weight), 24]


def test_no_sequence_trains_rl_in_a_dummy():
    nothing = scored(changed(document(1, 9), rl_weight=np.zeros(9, np.float32))).sequences
    assert (len(nothing.rows), nothing.lengths, nothing.environments, nothing.sample_ids) == (0, [], [], [])


def test_columns_from_the_wire():
    """Decoded arrays are read-only views of the message."""
    micro = unpack(pack(joined([document(1, 6), document(2, 8)])), MicroBatch)
    batch = scored(micro)
    rows = batch.tokens.rows.numpy()
    assert np.array_equal(batch.sampler_logprobs.numpy(), micro.logprobs[rows])
    assert np.array_equal(batch.advantages.numpy(), micro.advantage[rows])
    assert np.array_equal(batch.rl_weight.numpy(), micro.rl_weight[rows])


@pytest.mark.parametrize(
    ("column", "index", "value", "named"),
    [
        ("rl_weight", 6, 1.0, r"sample e2/0: a weight on a document's first token"),
        ("ce_weight", 0, 0.1, r"sample e1/0: a weight on a document's first token"),
        ("token_ids", 9, 265, r"sample e2/0: token_ids outside 0\.\.264"),
        ("token_ids", 3, -1, r"sample e1/0: token_ids outside 0\.\.264"),
        ("temperature", 8, 0.0, r"sample e2/0: a scored token whose temperature is not above 0"),
        ("temperature", 8, np.nan, r"sample e2/0: a scored token whose temperature is not above 0"),
    ],
)
def test_values_out_of_range_name_the_sample(column, index, value, named):
    micro = joined([document(1, 6), document(2, 8)])
    with pytest.raises(ValueError, match=named):
        scored(changed(micro, **{column: at(getattr(micro, column), index, value)}))


def test_temperature_of_tokens_that_are_not_scored_is_free():
    micro = document(1, 6)
    scored(changed(micro, temperature=at(micro.temperature, [0, 1], 0.0)))


@pytest.mark.parametrize("column", ["role", "logprobs", "version_low", "rl_weight", "temperature", "token_ids"])
def test_misaligned_columns_are_refused(column):
    micro = document(1, 6)
    with pytest.raises(ValueError, match=r"e1/0.*lengths sum to 6"):
        scored(changed(micro, **{column: getattr(micro, column)[:-1]}))


def test_documents_must_be_named_and_not_empty():
    micro = document(1, 6)
    with pytest.raises(ValueError, match="differ in number"):
        scored(changed(micro, environments=["a", "b"]))
    with pytest.raises(ValueError, match="no tokens"):
        scored(changed(micro, lengths=np.array([6, 0], np.int32), environments=["a"] * 2, sample_ids=["x", "y"]))
