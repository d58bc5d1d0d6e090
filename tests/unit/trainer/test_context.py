"""Which tokens of a pack a rank has and scores, how heads are shared, and what is refused."""

import json
from dataclasses import replace
from math import lcm
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.start_checks import context_problems
from echorl_testing.orchestrator.packs import model_config
from echorl_testing.trainer.context_ranks import exchanged
from echorl_testing.trainer.gang import on_ranks
from echorl_testing.trainer.tiny_learner import alone
from echorl_trainer.context import ContextGroup, repeated_heads, row_counts
from echorl_trainer.loading import start_policy
from echorl_trainer.parallel import connect


@pytest.mark.parametrize(
    ("rows", "tokens", "size", "counts"),
    [
        # Slices 0-3 and 4-7: token 4 is scored by what token 3 sees.
        ([1, 2, 4, 5, 7], 8, 2, (3, 2)),
        # Of three tokens each, the last one filled up; the third rank has token 6, which no row follows.
        ([1, 3, 6], 7, 3, (2, 1, 0)),
        ([1, 2, 3], 4, 8, (1, 1, 1, 0, 0, 0, 0, 0)),
        ([], 4, 2, (0, 0)),
    ],
)
def test_a_token_is_scored_where_the_one_before_it_is(rows, tokens, size, counts):
    assert row_counts(np.array(rows, np.int64), tokens, size) == counts


@given(st.integers(1, 16), st.integers(1, 12), st.integers(1, 12))
def test_every_rank_has_the_key_heads_of_its_query_heads(key_value, groups, size):
    """Each query head, by its number, attends to the copy of its own key head."""
    query = lcm(key_value * groups, size)
    repeats = repeated_heads(key_value, size)
    copies = np.repeat(np.arange(key_value), repeats).reshape(size, -1)
    heads = np.arange(query).reshape(size, -1)
    for mine, keys in zip(heads, copies, strict=True):
        assert (keys[np.arange(len(mine)) // (len(mine) // len(keys))] == mine // (query // key_value)).all()


def test_heads_and_tokens_are_exchanged_and_given_back():
    """Six heads, two of keys and values, seven tokens, three ranks: against the whole, worked out by slicing."""
    assert on_ranks(3, exchanged) == [True, True, True]


def test_ranks_that_cannot_share_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="context: found 2, accepted is a divisor of the 1 ranks of a replica"):
        connect(device="cpu", context=2)
    model = model_config(tmp_path / "m")
    with alone() as ranks:
        shared = [
            replace(ranks, context=ContextGroup(dist.distributed_c10d._get_default_group(), 0, size)) for size in (2, 3)
        ]
        with pytest.raises(ValueError, match="context: found 3, accepted is a divisor of the model's 4 attention"):
            start_policy(model, shared[1], seed=0)
        described = json.loads((tmp_path / "m" / "config.json").read_text())
        described["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        (tmp_path / "m" / "config.json").write_text(json.dumps(described))
        with pytest.raises(ValueError, match="context parallelism with rotary positions of type dynamic"):
            start_policy(model, shared[0], seed=0)
        start_policy(model, ranks, seed=0)


def test_a_start_is_refused_where_heads_do_not_divide(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 6}))
    assert [list(context_problems(tmp_path, size)) for size in (1, 2, 3, 6)] == [[], [], [], []]
    (problem,) = context_problems(tmp_path, 4)
    assert str(problem) == (
        "spec.trainer.parallel.context: found 4; accepted: a divisor of the model's 6 attention heads"
    )
