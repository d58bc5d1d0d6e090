"""What a rank does in the tests of context parallelism; importable by spawned processes."""

import torch

from echorl_trainer.parallel import connect, disconnect

TOKENS, QUERY, KEY_VALUE, SIZE = 7, 6, 2, 4


def exchanged() -> bool:
    """Whether this rank of three gets its heads of all tokens, and gives back what it had; gradients likewise."""
    ranks = connect(device="cpu", timeout_s=60.0, context=3)
    try:
        assert ranks.context is not None
        part = ranks.context.slice_of(TOKENS)
        generator = torch.Generator().manual_seed(0)
        whole = [torch.randn(TOKENS, heads, SIZE, generator=generator) for heads in (QUERY, KEY_VALUE, KEY_VALUE)]
        own = torch.zeros(3, part.length, QUERY, SIZE)
        inside = whole[0][part.begin : part.begin + part.length]
        own[0, : len(inside)] = inside
        query = own[0].requires_grad_()
        keys = [
            torch.cat([one, torch.zeros(2, KEY_VALUE, SIZE)])[part.begin : part.begin + part.length]
            for one in whole[1:]
        ]
        found = part.exchange.to_heads((query, keys[0], keys[1]))
        mine = ranks.context.index
        # Three copies of two heads: 0 0 0 1 1 1, two of them each.
        copies = torch.tensor([0, 0, 0, 1, 1, 1])[2 * mine : 2 * mine + 2]
        expected = (whole[0][:, 2 * mine : 2 * mine + 2], whole[1][:, copies], whole[2][:, copies])
        same = all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        back = part.exchange.to_tokens(2 * found[0])
        (back[: len(inside)] * inside).sum().backward()
        return (
            same
            and torch.equal(back[: len(inside)], 2 * inside)
            and query.grad is not None
            and torch.equal(query.grad[: len(inside)], 2 * inside)
        )
    finally:
        disconnect()
