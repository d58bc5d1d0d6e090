"""Mixtures of experts: the router, what it chose, and the tensors that experts are published as.

transformers keeps the experts of a layer as two stacks of matrices and multiplies them in groups; a folder, and an
engine, has matrices of each expert. Stacks are sharded by rows like all else, and every rank computes all experts, but
for expert parallelism (``expert_parallel.py``). Where tokens go to and come from is a permutation, and its gradient is
taken by the inverse one: torch would add up rows through atomic additions.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from echorl_trainer.expert_parallel import ExpertSplit, permuted
from echorl_trainer.grouped_products import Groups, added_up, linear, linear_from_experts, linear_to_experts
from echorl_trainer.routers import GROUP_LEAST
from echorl_trainer.shards import Portion, local

FAMILIES = ("qwen3_moe", "glm4_moe")
"""Model types that are known here."""
PRODUCTS = "echorl_grouped"
"""The name under which transformers knows ``grouped_experts``; on every device."""
GROUPED_MULTIPLE = 8
"""Rows of a grouped product begin at multiples of 16 bytes: of 8 values in half precision."""


class _ToExperts(torch.autograd.Function):
    """Copies of tokens [T, H], one for each of their experts, in the order of experts [T k, H]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, source: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.tokens = len(tokens)
        return tokens[source]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return added_up(gradients[0], inverse, ctx.tokens), None, None


class _FromExperts(torch.autograd.Function):
    """Sums of rows in the order of experts [T k, H] over the k of each of T tokens [T, H]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, inverse: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(source)
        return added_up(rows, inverse, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (source,) = ctx.saved_tensors
        return gradients[0][source], None, None, None


def grouped_experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """What the chosen experts make of every token, by two grouped products, in transformers' interface.

    A row is weighted between the products, where it is shortest and its gradient needs nothing that is not kept anyway.

    Args:
        experts: a module with stacks ``gate_up_proj`` [E, 2 I, H] and ``down_proj`` [E, H, I]; of a ``split`` one, this
            rank's of them.
        hidden: [T, H].
        chosen: int64 [T, k], experts of each token.
        weights: [T, k], of these.

    Returns:
        [T, H], in the dtype of ``hidden``; a token's experts are added up in float32.
    """
    ids, order = torch.sort(chosen.reshape(-1))
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    bounds = torch.searchsorted(ids, torch.arange(experts.num_experts + 1, device=ids.device)).to(torch.int32)
    groups = Groups(bounds, (order // chosen.shape[1]).to(torch.int32), inverse)
    weight = permuted(weights.reshape(-1, 1), order, inverse)
    split: ExpertSplit | None = getattr(experts, "split", None)
    if split is not None:
        return _split(experts, split, hidden, weight, groups)
    rows = _weighted(experts, linear_to_experts(hidden, local(experts.gate_up_proj), groups), weight)
    return linear_from_experts(rows, local(experts.down_proj), groups, len(hidden))


def _weighted(experts: Any, rows: Tensor, weight: Tensor) -> Tensor:
    """What is between the two products: gated rows [N, I] of [N, 2 I], weighted."""
    gated: Tensor = experts._apply_gate(rows) * weight
    return gated.to(rows.dtype)


def _split(experts: Any, split: ExpertSplit, hidden: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """``grouped_experts`` where this rank has a part of them."""
    bounds, source, inverse = groups

    def products(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        own = pad(ends, (1, 0))
        inside = _weighted(experts, linear(rows, local(experts.gate_up_proj), own), weight)
        return linear(inside, local(experts.down_proj), own)

    copies: Tensor = _ToExperts.apply(hidden, source, inverse)  # type: ignore[no-untyped-call]
    rows = split.apply(products, copies, weight, bounds[1:])
    total: Tensor = _FromExperts.apply(rows, source, inverse, len(hidden))  # type: ignore[no-untyped-call]
    return total


ALL_EXPERTS_FUNCTIONS.register(PRODUCTS, grouped_experts)


def has_experts(config: Any) -> bool:
    """Whether a model's config is that of a family in ``FAMILIES``."""
    return config.model_type in FAMILIES


def num_experts(config: Any) -> int:
    """How many experts the layers of a mixture have to choose from; 0 of a dense model."""
    if not has_experts(config):
        return 0
    return int(config.n_routed_experts if config.model_type == "glm4_moe" else config.num_experts)


def unsupported(config: Any) -> list[str]:
    """What of a mixture's config these experts and routers do not know."""
    found = []
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        found.append("layers without experts among those with them (mlp_only_layers, decoder_sparse_step)")
    widths = (config.hidden_size, config.moe_intermediate_size)
    if any(width % GROUPED_MULTIPLE for width in widths):
        found.append(f"experts of widths {widths}, accepted are multiples of {GROUPED_MULTIPLE}")
    groups, best = getattr(config, "n_group", 1), getattr(config, "topk_group", 1)
    size, rest = divmod(num_experts(config), max(1, groups))
    told_apart = best == groups or size >= GROUP_LEAST
    if rest or not 1 <= best <= groups or not told_apart or best * size < config.num_experts_per_tok:
        found.append(f"groups of experts that do not add up (n_group {groups}, topk_group {best})")
    return found


def expert_stacks(model: nn.Module) -> list[nn.Module]:
    """The modules with the experts' stacks, in the order of layers; none of a dense model."""
    return [module for module in model.modules() if isinstance(module, Qwen3MoeExperts | Glm4MoeExperts)]


def refuse_undivided(config: Any, expert: int, *, compiled: bool = False) -> None:
    """Refuse models whose experts ``expert`` ranks cannot have equally many of, and compiled layers of those they can.

    Raises:
        ValueError: there are no experts, their number does not divide, or layers are to be compiled.
    """
    if expert > 1 and compiled:
        raise ValueError("compile: found true, accepted where experts are split: false")
    experts = num_experts(config)
    if expert > 1 and (not experts or experts % expert):
        accepted = f"a divisor of the model's {experts} experts" if experts else "1: the model has no experts"
        raise ValueError(f"expert: found {expert}, accepted is {accepted}")


def stored_buffers(model: nn.Module) -> dict[str, Tensor]:
    """What a folder holds beside weights that train, such as biases of routers, by name; none of most models."""
    stored = model.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in model.named_buffers() if name in stored}


def published(name: str, parameter: Tensor) -> Iterator[tuple[str, Tensor | Portion]]:
    """The tensors that a parameter is published as, by their names in Hugging Face's folders: itself, or its experts'.

    ``gate_up_proj`` [E, 2 I, H] is ``gate_proj`` and ``up_proj``, [I, H], of each of E experts; ``down_proj`` likewise.
    """
    owner, _, last = name.rpartition(".")
    if not owner.endswith(".mlp.experts") or parameter.ndim != 3:
        yield name, parameter
        return
    experts, rows, _ = parameter.shape
    halves = {last: slice(0, rows)}
    if last == "gate_up_proj":
        halves = {"gate_proj": slice(0, rows // 2), "up_proj": slice(rows // 2, rows)}
    for expert in range(experts):
        for part, place in halves.items():
            yield f"{owner}.{expert}.{part}.weight", Portion(parameter, expert, place)
