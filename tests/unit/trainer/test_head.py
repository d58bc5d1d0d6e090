"""The output head against plain log-softmax in float64: statistics, gradients, and tokens at the edge of float32."""

import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from echorl_testing.trainer.head_edges import check_edge, check_not_finite, edge
from echorl_trainer.head import token_logprobs, token_loss
from echorl_trainer.head.ratios import Ratios, fold_in_torch
from echorl_trainer.head.softmax import CappedSoftmax, Softmax
from echorl_trainer.losses import cispo_loss, cross_entropy_loss, dppo_loss, grpo_loss, opd_loss, reinforce_loss

ROWS, VOCABULARY = 13, 11
SOFTCAP = 1.5

ARITHMETICS = [
    pytest.param(kind(**own, chunk_logits=size), id=f"{kind.__name__}, {name}")
    for kind, own in ((Softmax, {}), (Ratios, {}), (CappedSoftmax, {"softcap": SOFTCAP}))
    for size, name in ((1, "row by row"), (44, "four rows"), (1 << 20, "one chunk"))
]
ONE_OF_EACH = [
    pytest.param(Softmax(44), id="Softmax"),
    pytest.param(Ratios(chunk_logits=44), id="Ratios"),
    pytest.param(CappedSoftmax(SOFTCAP, 44), id="CappedSoftmax"),
]
needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def inputs(rows=ROWS, width=6, vocabulary=VOCABULARY, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator).to(device, dtype).requires_grad_()
    head = torch.randn(vocabulary, width, generator=generator).to(device, dtype).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=generator).to(device)
    temperature = (0.5 + torch.rand(rows, generator=generator)).to(device)
    return hidden, head, targets, temperature


def plain(hidden, head, targets, temperature, arithmetic=None):
    logits = hidden.double() @ head.double().t()
    if isinstance(arithmetic, CappedSoftmax):
        logits = arithmetic.softcap * torch.tanh(logits / arithmetic.softcap)
    every = (logits / temperature.double()[:, None]).log_softmax(-1)
    return every.gather(1, targets[:, None])[:, 0], -(every.exp() * every).sum(-1)


def relative(mine, reference):
    return float((mine.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_values_and_gradients_match_log_softmax(arithmetic):
    hidden, head, targets, temperature = inputs()
    upstream = torch.linspace(-1, 1, ROWS)
    logprobs, entropy = token_logprobs(hidden, head, targets, temperature, arithmetic=arithmetic)
    (logprobs * upstream).sum().backward()
    got = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    expected, expected_entropy = plain(hidden, head, targets, temperature, arithmetic)
    (expected * upstream).sum().backward()
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(got, (hidden.grad, head.grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


SAMPLER = torch.linspace(-4.0, -0.5, ROWS)
ADVANTAGES = torch.linspace(-2.0, 2.0, ROWS)
RL = (torch.arange(ROWS) % 3 != 0).float()
"""The rest is ECHO's."""
BOUNDS = {"kl_tau": 1e-2, "denominator": 7.0}
OBJECTIVES = {
    "dppo": lambda own, *rest: dppo_loss(own, *rest, mask_low=0.2, mask_high=0.2, **BOUNDS),
    "grpo": lambda own, *rest: grpo_loss(own, *rest, clip_low=0.2, clip_high=0.3, **BOUNDS),
    "cispo": lambda own, *rest: cispo_loss(own, *rest, clip_low=0.2, clip_high=0.3, **BOUNDS),
    "reinforce": lambda own, *rest: reinforce_loss(own, *rest, **BOUNDS),
    "opd": lambda own, *rest: opd_loss(own, *rest, mask_low=0.2, **BOUNDS),
}


def objective(name, device="cpu"):
    def total(logprobs):
        columns = (one.to(device, logprobs.dtype) for one in (SAMPLER, ADVANTAGES, RL))
        echo = 0.05 * (1 - RL).to(device, logprobs.dtype)
        rl = OBJECTIVES[name](logprobs, *columns).loss
        return rl + cross_entropy_loss(logprobs, echo, denominator=5.0).loss

    return total


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_its_gradients_in_one_operator(name, arithmetic):
    columns = inputs()
    hidden, head = columns[:2]
    loss, logprobs, entropy = token_loss(*columns, objective(name), arithmetic=arithmetic)
    (3.0 * loss).backward()
    got = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    expected, expected_entropy = plain(*columns, arithmetic)
    reference = objective(name)(expected)
    (3.0 * reference).backward()
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=1e-5)
    torch.testing.assert_close(logprobs.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy.double(), expected_entropy.detach(), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(got, (hidden.grad, head.grad), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_on_a_cpu_the_bits_are_those_of_a_loss_after_the_head():
    columns = inputs()
    hidden, head = columns[:2]
    token_loss(*columns, objective("cispo"))[0].backward()
    got = hidden.grad.clone(), head.grad.clone()
    hidden.grad = head.grad = None
    objective("cispo")(token_logprobs(*columns)[0]).backward()
    assert torch.equal(got[0], hidden.grad)
    assert torch.equal(got[1], head.grad)


@pytest.mark.parametrize("arithmetic", ONE_OF_EACH)
def test_a_token_loss_takes_three_products_and_another_loss_four(arithmetic):
    columns = inputs()
    product = 2 * ROWS * 6 * VOCABULARY
    with FlopCounterMode(display=False) as counter:
        token_loss(*columns, objective("dppo"), arithmetic=arithmetic)[0].backward()
    assert counter.get_total_flops() == 3 * product
    with FlopCounterMode(display=False) as counter:
        token_logprobs(*columns, arithmetic=arithmetic)[0].sum().backward()
    assert counter.get_total_flops() == 4 * product


@pytest.mark.parametrize("arithmetic", ONE_OF_EACH)
def test_a_head_that_does_not_train_costs_no_product(arithmetic):
    hidden, head, *rest = inputs()
    frozen = head.detach()
    with FlopCounterMode(display=False) as counter:
        token_loss(hidden, frozen, *rest, objective("dppo"), arithmetic=arithmetic)[0].backward()
    assert counter.get_total_flops() == 2 * 2 * ROWS * 6 * VOCABULARY
    got, hidden.grad = hidden.grad, None
    token_loss(hidden, head, *rest, objective("dppo"), arithmetic=arithmetic)[0].backward()
    assert torch.equal(got, hidden.grad)


def test_logits_never_stand_all_at_once(monkeypatch):
    hidden, head, targets, temperature = inputs(rows=40)
    sizes = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: sizes.append(product(a, b).shape) or product(a, b))
    logprobs, _ = token_logprobs(hidden, head, targets, temperature, arithmetic=Softmax(44))
    logprobs.sum().backward()
    assert max(rows for rows, columns in sizes if columns == VOCABULARY) == 4


@pytest.mark.parametrize(
    ("rows", "vocabulary", "chunk"),
    [(32_768, 151_936, 8192), (8192, 151_936, 8192), (9000, 151_936, 4608), (10, 151_936, 128), (0, 50_257, 128)],
)
def test_chunks_are_even_and_of_whole_tiles(rows, vocabulary, chunk):
    assert Ratios().chunk_rows(rows, vocabulary) == chunk


@pytest.mark.parametrize("arithmetic", ONE_OF_EACH[:2])
def test_per_token_temperature_by_hand(arithmetic):
    """Logits (ln 4, 0): at temperature 1 the first has 4/5, at temperature 2 it has 2/3."""
    head = torch.tensor([[math.log(4.0)], [0.0]])
    hidden = torch.ones(2, 1)
    columns = (hidden, head, torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    logprobs, entropy = token_logprobs(*columns, arithmetic=arithmetic)
    torch.testing.assert_close(logprobs.exp(), torch.tensor([4 / 5, 2 / 3]))
    by_hand = [-sum(p * math.log(p) for p in pair) for pair in ((4 / 5, 1 / 5), (2 / 3, 1 / 3))]
    torch.testing.assert_close(entropy, torch.tensor(by_hand))


def test_a_softcap_by_hand():
    """A logit of 1 under a cap of 1 is tanh 1, beside one of 0; at temperature 2 it is half of that."""
    columns = (torch.ones(2, 1), torch.tensor([[1.0], [0.0]]), torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    expected = torch.tensor([1 / (1 + math.exp(-math.tanh(1) / temperature)) for temperature in (1, 2)])
    torch.testing.assert_close(token_logprobs(*columns, softcap=1.0)[0].exp(), expected)
    torch.testing.assert_close(token_loss(*columns, torch.sum, softcap=1.0)[1].exp(), expected)


def test_what_carries_a_gradient():
    logprobs, entropy = token_logprobs(*inputs())
    assert (logprobs.requires_grad, entropy.requires_grad) == (True, False)
    loss, logprobs, entropy = token_loss(*inputs(), objective("dppo"))
    assert (loss.requires_grad, logprobs.requires_grad, entropy.requires_grad) == (True, False, False)


@pytest.mark.parametrize("arithmetic", ONE_OF_EACH)
def test_half_precision_inputs_are_scored_in_float32(arithmetic):
    hidden, head, targets, temperature = inputs(dtype=torch.bfloat16)
    logprobs, _ = token_logprobs(hidden, head, targets, temperature, arithmetic=arithmetic)
    assert logprobs.dtype == torch.float32
    expected, _ = plain(hidden, head, targets, temperature, arithmetic)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-5, atol=1e-5)
    logprobs.sum().backward()
    assert head.grad.dtype == hidden.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("arithmetic", ONE_OF_EACH)
def test_no_rows_still_run_backward(arithmetic):
    for run in (
        lambda columns: token_logprobs(*columns, arithmetic=arithmetic)[0].sum(),
        lambda columns: token_loss(*columns, torch.sum, arithmetic=arithmetic)[0],
    ):
        hidden, head, *rest = inputs(rows=0)
        run((hidden, head, *rest)).backward()
        assert not head.grad.any()
        assert hidden.grad.shape == (0, 6)


MARGINS = st.lists(st.floats(-400, 60), min_size=1, max_size=9)


@given(margins=MARGINS)
@settings(max_examples=40)
def test_no_target_is_too_likely_or_too_unlikely(margins):
    check_edge(fold_in_torch, *edge(margins), tolerance=1e-5, gradient=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stays_in_its_row(value):
    check_not_finite(fold_in_torch, value)


def test_the_kernels_do_the_same():
    """By Triton's interpreter, in a process of its own: it is chosen when Triton is imported."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "echorl_testing.trainer.head_edges"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("margins", [[-400.0, -90.0, -60.0, -35.0, -20.0, 0.0, 20.0, 60.0]])
@pytest.mark.parametrize("vocabulary", [300, 5003])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=needs_gpu)])
def test_no_target_is_too_likely_or_too_unlikely_on_a_gpu(device, margins, vocabulary):
    from echorl_trainer.head.kernels import fold_on_device  # noqa: PLC0415 - there is no Triton elsewhere

    rows, head = edge(margins * 40, vocabulary=vocabulary, dtype=torch.bfloat16, device=device)
    check_edge(fold_on_device, rows, head, tolerance=3e-5, gradient=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dppo", "opd"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=needs_gpu)])
def test_loss_and_its_gradients_on_a_gpu(device, name, dtype):
    columns = inputs(width=64, vocabulary=1003, dtype=dtype, device=device)
    hidden, head = columns[:2]
    doubles = [one.detach().double().requires_grad_() for one in columns[:2]]
    expected, expected_entropy = plain(*doubles, *columns[2:])
    objective(name, device)(expected).backward()
    loss, logprobs, entropy = token_loss(*columns, objective(name, device))
    loss.backward()
    torch.testing.assert_close(logprobs.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy.double(), expected_entropy.detach(), rtol=1e-5, atol=1e-4)
    bound = 1e-5 if dtype == torch.float32 else 1e-2
    assert relative(hidden.grad, doubles[0].grad) < bound
    assert relative(head.grad, doubles[1].grad) < bound
    hidden.grad = head.grad = None
    objective(name, device)(token_logprobs(*columns)[0]).backward()
    assert relative(hidden.grad, doubles[0].grad) < bound
    assert relative(head.grad, doubles[1].grad) < bound
