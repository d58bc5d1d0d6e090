"""Signs that a policy has come apart, read off the tokens that it sampled: pure functions.

Only action tokens count, with the logprobs that engines reported when they drew them.
"""

import math

import numpy as np

from echorl_core.wire.batch import Sample, TokenRole

RARE_ID = 100_000
"""Tokens of byte-pair vocabularies are numbered in the order of their merges: higher ids are rare."""
RARE_MARGIN_NATS = 2.0
SURE_PROBABILITY = 0.99
SURE_TOKENS = 3000


def is_gibberish(
    sample: Sample, vocab_size: int, *, rare_id: int = RARE_ID, margin_nats: float = RARE_MARGIN_NATS
) -> bool:
    """Whether a rare token was drawn that was less likely than chance.

        token_id > rare_id   and   lq_t < -log(vocab_size) - margin_nats

    Source: arXiv:2510.02387. A vocabulary of up to ``rare_id`` tokens has no rare ones.
    """
    drawn = sample.role == TokenRole.ACTION
    unlikely = sample.logprobs < -math.log(vocab_size) - margin_nats
    return bool((drawn & unlikely & (sample.token_ids > rare_id)).any())


def is_repetition(sample: Sample, *, probability: float = SURE_PROBABILITY, tokens: int = SURE_TOKENS) -> bool:
    """Whether one turn holds ``tokens`` sampled ones in a row, each of a probability above ``probability``.

    Source: MiniMax-M1 (arXiv:2506.13585), which ends a generation there. A run ends with its turn: two sure answers are
    no loop.
    """
    sure = (sample.role == TokenRole.ACTION) & (sample.logprobs > math.log(probability))
    place = np.arange(sample.num_tokens)
    starts = np.where(sure, 0, place + 1)
    other_turn = np.flatnonzero(sample.turn[1:] != sample.turn[:-1]) + 1
    starts[other_turn] = np.maximum(starts[other_turn], other_turn)
    # At each token, how many sure ones of its turn end there.
    lengths = place - np.maximum.accumulate(starts) + 1
    return bool((lengths >= tokens).any())
