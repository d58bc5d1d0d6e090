"""Our losses in float32 against loops and formulas in float64; ECHO from samples to gradients, by both normalisers."""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np
import torch
from torch import Tensor

from benchmarks.parity import formulas
from benchmarks.parity.rows import Row, relative
from echorl_core.config import HookConfig, LossConfig
from echorl_core.wire.batch import Sample
from echorl_orchestrator.batches.loss_weights import weigh
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import A, C, E, batch_config, outcome, sample
from echorl_testing.trainer.loss_oracle import DEFAULTS, expected
from echorl_trainer.losses import (
    LossInputs,
    LossOutputs,
    PolicyTokens,
    RlSequences,
    cross_entropy_loss,
    opd_loss,
    policy_loss,
)

TOKENS = 4096
DENOMINATOR = 1234.0
KL_TAU = 1e-3

FORMULAS: dict[str, tuple[str, formulas.Formula, dict[str, float]]] = {
    "dppo": ("prime-rl: DPPO, 0.2", formulas.dppo(0.2, 0.2), {}),
    "dppo 0.1 / 0.3": ("prime-rl: DPPO", formulas.dppo(0.1, 0.3), {"mask_low": 0.1, "mask_high": 0.3}),
    "ipo": ("prime-rl: IPO, 0.3", formulas.ipo(0.3), {}),
    "ipo 0.1": ("prime-rl: IPO, 0.1", formulas.ipo(0.1), {"mask_low": 0.1, "mask_high": 0.1}),
    "grpo": ("PPO, DAPO", formulas.grpo(0.2, 0.28), {}),
    "cispo": ("MiniMax-M1", formulas.cispo(1.0, 0.28), {}),
    "reinforce": ("Williams", formulas.reinforce, {}),
}


Columns = tuple[Tensor, Tensor, Tensor, Tensor]
"""Policy and sampler logprobs, advantages, weights."""


def tokens(seed: int) -> Columns:
    """Policy and sampler logprobs, advantages, weights; some of the last two are zero."""
    generator = torch.Generator().manual_seed(seed)
    policy = -4 * torch.rand(TOKENS, generator=generator) - 1e-2
    sampler = (policy + 0.4 * torch.randn(TOKENS, generator=generator)).clamp(max=-1e-3)
    advantages = torch.randn(TOKENS, generator=generator) * (torch.rand(TOKENS, generator=generator) > 0.1)
    weights = torch.rand(TOKENS, generator=generator) * (torch.rand(TOKENS, generator=generator) > 0.3)
    return policy, sampler, advantages, weights


def _ours(config: LossConfig, columns: Columns) -> tuple[Tensor, Tensor]:
    policy = columns[0].clone().requires_grad_()
    rows = columns[3].nonzero()[:, 0]
    sequences = RlSequences(rows, [len(rows)], ["a"], ["e/0"])
    output = policy_loss(config)(PolicyTokens(policy, *columns[1:], sequences), denominator=DENOMINATOR)
    return output.loss.detach(), _gradient(output.loss, policy)


def _gradient(loss: Tensor, logprobs: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logprobs)[0]


def _formula(formula: formulas.Formula, columns: Columns) -> tuple[Tensor, Tensor, float]:
    policy, sampler, advantages, weights = (column.double() for column in columns)
    policy.requires_grad_()
    terms = weights / DENOMINATOR * (formula(policy, sampler, advantages) + KL_TAU * formulas.penalty(policy, sampler))
    return terms.sum().detach(), _gradient(terms.sum(), policy), float(terms.detach().abs().sum())


def _loop(kind: str, columns: Columns) -> tuple[Tensor, Tensor, float]:
    rows = zip(*(column.double().tolist() for column in columns), strict=True)
    wanted = expected(kind, rows, denominator=DENOMINATOR, **DEFAULTS[kind])
    return torch.tensor(wanted.loss).double(), torch.tensor(wanted.gradient).double(), wanted.size


def policy_gradients(seed: int) -> Iterator[Row]:
    """Each policy gradient against the loop and against its formula."""
    columns = tokens(seed)
    for kind, settings in DEFAULTS.items():
        config = LossConfig.model_validate({"type": kind, **settings})
        yield _row(kind, "float64 loop", _ours(config, columns), _loop(kind, columns))
    for name, (source, formula, bounds) in FORMULAS.items():
        kind = name.partition(" ")[0]
        config = LossConfig.model_validate({"type": kind, **DEFAULTS[kind], **bounds})
        yield _row(name, source, _ours(config, columns), _formula(formula, columns))
    own = LossConfig(type="custom", hook=HookConfig(import_path="benchmarks.parity.losses:own_reinforce"))
    yield _row("custom: REINFORCE", "Williams", _ours(own, columns), _formula(formulas.reinforce, columns))


def other_modes(seed: int) -> Iterator[Row]:
    """On-policy distillation, with a teacher that is off by about a nat, and supervised training."""
    policy, sampler, offsets, weights = tokens(seed)
    teacher = (policy + offsets).clamp(max=-1e-3)
    for low in (0.2, 0.05):
        leaf = policy.clone().requires_grad_()
        found = opd_loss(leaf, sampler, teacher, weights, mask_low=low, kl_tau=KL_TAU, denominator=DENOMINATOR)
        wanted = _formula(formulas.opd(low), (policy, sampler, teacher, weights))
        yield _row(
            f"opd {low}", "prime-rl: ref_kl, one side", (found.loss.detach(), _gradient(found.loss, leaf)), wanted
        )
    leaf, exact, mask = policy.clone().requires_grad_(), policy.double().requires_grad_(), weights != 0
    loss = cross_entropy_loss(leaf, mask.float(), denominator=float(mask.sum())).loss
    mean = formulas.sft(exact, mask)
    yield _row(
        "sft",
        "prime-rl: ce",
        (loss.detach(), _gradient(loss, leaf)),
        (mean.detach(), _gradient(mean, exact), float(mean.detach())),
    )


def _row(what: str, against: str, found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor, float]) -> Row:
    loss, gradient, size = wanted
    # Gradients of terms that cancel within a token have no relative error of their own: a hundredth of the largest.
    return Row(
        what, against, relative(found[0], loss, size), relative(found[1], gradient, float(gradient.abs().max()) / 100)
    )


def own_reinforce(inputs: LossInputs) -> LossOutputs:
    """A user's function."""
    log_ratio = inputs.policy_logprobs - inputs.sampler_logprobs
    return LossOutputs(KL_TAU * log_ratio**2 - inputs.advantages * inputs.policy_logprobs)


def _episodes(seed: int) -> list[ReadyEpisode]:
    """Multi-turn episodes with observations; of some observations a filter has left only every second token."""
    generator = np.random.default_rng(seed)
    ready = []
    for number in range(24):
        roles = [C, C]
        for _ in range(int(generator.integers(1, 5))):
            roles += [A] * int(generator.integers(1, 30)) + [E] * int(generator.integers(0, 40))
        made = sample(roles, episode=f"e{number}", alpha=0.05)
        if number % 3 == 0:
            made = msgspec.structs.replace(made, ce_weight=made.ce_weight * (np.arange(len(roles)) % 2))
        ticket = Ticket("terminal", number, 0, 0)
        advantage = float(generator.normal())
        found = outcome(f"e{number}", samples=[made])
        ready.append(ReadyEpisode(found, f"g{number}", ticket, advantage, Verdict(), version_low=0, partial=False))
    return ready


def echo(seed: int) -> Iterator[Row]:
    """Both terms, from samples through weights and denominators to the gradient of every token's logprob."""
    generator = torch.Generator().manual_seed(seed)
    for normalizer, source in (("globalTokens", "prime-rl"), ("perSequence", "ECHO, the paper's L_Env")):
        ready = _episodes(seed)
        samples, totals = weigh(ready, batch_config(echo_normalizer=normalizer), frozenset({"terminal"}))
        count = sum(one.num_tokens for one in samples)
        policy = (-4 * torch.rand(count, generator=generator) - 1e-2).requires_grad_()
        moved = 0.4 * torch.randn(count, generator=generator)
        action = _column(samples, "role") == int(A)
        sampler = torch.where(action, (policy.detach() + moved).clamp(max=-1e-3), 0.0)
        loss = _step(samples, totals, policy, sampler)
        exact = policy.detach().double().requires_grad_()
        wanted, size = _peers_step(samples, [one.advantage for one in ready], exact, sampler.double(), normalizer)
        found = (loss.detach(), _gradient(loss, policy))
        yield _row(f"dppo + ECHO {normalizer}", source, found, (wanted.detach(), _gradient(wanted, exact), size))


def _column(samples: list[Sample], name: str) -> Tensor:
    return torch.from_numpy(np.concatenate([getattr(one, name) for one in samples]))


def _step(samples: list[Sample], totals: dict[str, float], policy: Tensor, sampler: Tensor) -> Tensor:
    advantages, weights, ce = (_column(samples, name) for name in ("advantage", "rl_weight", "ce_weight"))
    nowhere = RlSequences(torch.zeros(0, dtype=torch.int64), [], [], [])
    tokens = PolicyTokens(policy, sampler, advantages, weights, nowhere)
    rl = policy_loss(LossConfig())(tokens, denominator=totals["rl"]).loss
    return rl + cross_entropy_loss(policy, ce, denominator=totals["ce"]).loss


def _peers_step(
    samples: list[Sample], advantages: list[float], lp: Tensor, lq: Tensor, normalizer: str
) -> tuple[Tensor, float]:
    """The peers' way: masks and one advantage for each rollout, no weights; token 0 of a sample never trains.

    The loss, and the sum of its absolute terms.
    """
    lengths = [one.num_tokens for one in samples]
    starts = np.cumsum([0, *lengths])
    first = torch.zeros(sum(lengths), dtype=torch.bool)
    first[torch.from_numpy(starts[:-1])] = True
    role = _column(samples, "role")
    spread = torch.repeat_interleave(torch.tensor(advantages, dtype=torch.float64), torch.tensor(lengths))
    rl = formulas.dppo(0.2, 0.2)(lp, lq, spread) + KL_TAU * formulas.penalty(lp, lq)
    action, chosen = (role == int(A)) & ~first, _column(samples, "ce_weight") != 0

    def whole(terms: Tensor) -> Tensor:
        if normalizer == "globalTokens":
            alpha = torch.full_like(lp, 0.05)
            return formulas.with_echo(terms, lp, alpha, loss_mask=action | chosen, echo_mask=chosen)
        within = [torch.zeros_like(first).index_fill(0, torch.arange(*ends), 1) for ends in pairwise(starts.tolist())]
        observed = [mask & (role == int(E)) for mask in within]
        trained = [mask & chosen for mask in within]
        return terms[action].sum() / int(action.sum()) + formulas.echo_per_sequence(lp, 0.05, observed, trained)

    # ECHO's terms are all positive, so the loss of absolute RL terms is the sum of absolute terms.
    return whole(rl), float(whole(rl.detach().abs()).detach())
