"""The chunked head against plain log-softmax."""

import math

import pytest
import torch

from echorl_trainer.logprobs import token_logprobs


def inputs(rows=13, width=6, vocabulary=11, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator).to(dtype).requires_grad_()
    head = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    temperature = 0.5 + torch.rand(rows, generator=generator)
    return hidden, head, targets, temperature


def plain(hidden, head, targets, temperature):
    logits = hidden.double() @ head.double().t() / temperature.double()[:, None]
    every = logits.log_softmax(-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


@pytest.mark.parametrize("chunk_logits", [1, 44, 1 << 20], ids=["row by row", "four rows", "one chunk"])
def test_values_and_gradients_match_log_softmax(chunk_logits):
    hidden, head, targets, temperature = inputs()
    upstream = torch.linspace(-1, 1, 13)
    logprobs, entropy = token_logprobs(hidden, head, targets, temperature, chunk_logits=chunk_logits)
    (logprobs * upstream).sum().backward()
    got = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    expected, expected_entropy = plain(hidden, head, targets, temperature)
    (expected * upstream).sum().backward()
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(got, (hidden.grad, head.grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_logits_never_stand_all_at_once(monkeypatch):
    hidden, head, targets, temperature = inputs(rows=40)
    sizes = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: sizes.append(product(a, b).shape) or product(a, b))
    logprobs, _ = token_logprobs(hidden, head, targets, temperature, chunk_logits=44)
    logprobs.sum().backward()
    assert max(rows for rows, columns in sizes if columns == 11) == 4


def test_per_token_temperature_by_hand():
    """Logits (ln 4, 0): at temperature 1 the first has 4/5, at temperature 2 it has 2/3."""
    head = torch.tensor([[math.log(4.0)], [0.0]])
    hidden = torch.ones(2, 1)
    logprobs, entropy = token_logprobs(hidden, head, torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    torch.testing.assert_close(logprobs.exp(), torch.tensor([4 / 5, 2 / 3]))
    by_hand = [-sum(p * math.log(p) for p in pair) for pair in ((4 / 5, 1 / 5), (2 / 3, 1 / 3))]
    torch.testing.assert_close(entropy, torch.tensor(by_hand))


def test_entropy_carries_no_gradient():
    logprobs, entropy = token_logprobs(*inputs())
    assert logprobs.requires_grad
    assert not entropy.requires_grad


def test_half_precision_inputs_are_scored_in_float32():
    hidden, head, targets, temperature = inputs(dtype=torch.bfloat16)
    logprobs, _ = token_logprobs(hidden, head, targets, temperature)
    assert logprobs.dtype == torch.float32
    expected, _ = plain(hidden, head, targets, temperature)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    logprobs.sum().backward()
    assert head.grad.dtype == hidden.grad.dtype == torch.bfloat16


def test_no_rows_still_run_backward():
    hidden, head, targets, temperature = inputs(rows=0)
    logprobs, _ = token_logprobs(hidden, head, targets, temperature)
    logprobs.sum().backward()
    assert not head.grad.any()
    assert hidden.grad.shape == (0, 6)
