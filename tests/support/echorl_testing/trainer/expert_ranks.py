"""What a rank does in the tests of expert parallelism; importable by spawned processes."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from echorl_trainer.expert_parallel import split_experts
from echorl_trainer.experts import grouped_experts
from echorl_trainer.parallel import Ranks, connect, disconnect

EXPERTS, HIDDEN, INNER = 4, 16, 8


def by_hand(hidden: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One token and one of its experts after the other."""
    rows = []
    for token, (row, experts) in enumerate(zip(hidden, chosen.tolist(), strict=True)):
        total = torch.zeros_like(row)
        for place, expert in enumerate(experts):
            gate, up = (gate_up[expert] @ row).chunk(2)
            total = total + weights[token, place] * (down[expert] @ (torch.nn.functional.silu(gate) * up))
        rows.append(total)
    return torch.stack(rows)


def multiplied() -> list[dict[str, bool]]:
    """Whether what this rank of two gets, and all gradients, are those by hand in float64, of 5 or 9 tokens.

    First these choose among all experts, then among those of the first rank alone.
    """
    ranks = connect(device="cpu", timeout_s=60.0, expert=2)
    try:
        return [_multiplied(ranks, every_expert) for every_expert in (True, False)]
    finally:
        disconnect()


def _multiplied(ranks: Ranks, every_expert: bool) -> dict[str, bool]:
    assert ranks.experts is not None
    generator = torch.Generator().manual_seed(0)
    stacks = [torch.randn(EXPERTS, *shape, generator=generator) for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))]
    inputs = [drawn(tokens, generator, every_expert) for tokens in (5, 9)]
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=EXPERTS, experts_implementation="eager"
    )
    with torch.device("meta"):
        experts = Qwen3MoeExperts(config)
    split_experts(experts, ranks.experts["expert"])
    mine = slice(2 * ranks.rank, 2 * ranks.rank + 2)
    for name, stack in zip(("gate_up_proj", "down_proj"), stacks, strict=True):
        whole = DTensor.from_local(stack[mine].clone(), ranks.experts["expert"], [Shard(0)], run_check=False)
        setattr(experts, name, torch.nn.Parameter(whole))
    hidden, chosen, weights = inputs[ranks.rank]
    hidden, weights = hidden.requires_grad_(), weights.requires_grad_()
    found = grouped_experts(experts, hidden, chosen, weights)
    found.square().sum().backward()
    wide = [stack.double().requires_grad_() for stack in stacks]
    copies = [(h.detach().double().requires_grad_(), c, w.detach().double().requires_grad_()) for h, c, w in inputs]
    expected = [by_hand(*one, *wide) for one in copies]
    sum(one.square().sum() for one in expected).backward()  # type: ignore[union-attr]
    theirs = copies[ranks.rank]
    gradients = [getattr(experts, name).grad.to_local() for name in ("gate_up_proj", "down_proj")]
    return {
        "rows": close(found, expected[ranks.rank]),
        "hidden": close(hidden.grad, theirs[0].grad),
        "weights": close(weights.grad, theirs[2].grad),
        "stacks": all(close(one, two.grad[mine]) for one, two in zip(gradients, wide, strict=True)),  # type: ignore[index]
    }


def drawn(tokens: int, generator: torch.Generator, every_expert: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, two experts of each token, of the first two alone unless of all, and their weights."""
    hidden = torch.randn(tokens, HIDDEN, generator=generator)
    chosen = torch.rand(tokens, EXPERTS if every_expert else 2, generator=generator).argsort(dim=1)[:, :2]
    return hidden, chosen, torch.rand(tokens, 2, generator=generator)


def close(found: Tensor | None, expected: Tensor | None) -> bool:
    """In float32, relative to the largest."""
    assert found is not None
    assert expected is not None
    return bool((found.double() - expected).abs().max() <= 1e-5 * expected.abs().max().clamp(min=1.0))
