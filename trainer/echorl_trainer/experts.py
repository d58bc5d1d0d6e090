"""Mixtures of experts: the router, what it chose, and the tensors that experts are published as.

transformers keeps the experts of a layer as two stacks of matrices and multiplies them in groups; a folder, and an
engine, has matrices of each expert. Stacks are sharded by rows like all else, and every rank computes all experts, but
for expert parallelism (``expert_parallel.py``). Where tokens go to and come from is a permutation, and its gradient is
taken by the inverse one: torch would add up rows through atomic additions.
"""

import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own word
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, _grouped_linear
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeExperts, Glm4MoeTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts, Qwen3MoeTopKRouter

from echorl_core.routing import RouterShape
from echorl_trainer.expert_parallel import ExpertSplit, permuted
from echorl_trainer.shards import Portion, local

FAMILIES = ("qwen3_moe", "glm4_moe")
"""Model types that are known here."""
PRODUCTS = "echorl_grouped"
"""The name under which transformers knows ``grouped_experts``; on every device."""
_LEAST = 1e-20
"""Added to a sum of weights, as transformers does."""
_GROUP_LEAST = 2
"""Experts of a group, by whose best scores it is told from others."""
SUMS = ("entropy", "tokens", "given", "differing")
"""What a router counts beside loads: the sum of its entropies, its tokens, those whose experts were given, and those of
them that it would have sent to others."""
NOT_GIVEN = -1
"""Stands for each expert of a token that the router chooses for itself."""
GROUPED_MULTIPLE = 8
"""Rows of a grouped product begin at multiples of 16 bytes: of 8 values in half precision."""


class Router(nn.Module):
    """Chooses experts as transformers' router does, but that logits are a product in float32 whatever is computed in.

    Weights are those of the compute dtype, as engines hold them.
    """

    load: Tensor

    def __init__(self, router: Qwen3MoeTopKRouter | Glm4MoeTopkRouter) -> None:
        super().__init__()
        self.weight = router.weight
        self.top_k = router.top_k
        self.norm_topk_prob = router.norm_topk_prob
        self.padding = 0
        """Tokens at the end of what the next forward gets that are not to be counted."""
        self.given: Tensor | None = None
        """Int [T, k], what the tokens of the next forward go to, in place of the router's own choice; in rows of
        ``NOT_GIVEN`` that stands. None: none is given."""
        counts = torch.zeros(len(router.weight) + len(SUMS), dtype=torch.float64, device=router.weight.device)
        self.register_buffer("load", counts, persistent=False)
        """float64 [E + 4], of the last forward: how often each expert was chosen, and ``SUMS``."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``hidden``: [..., H], T in all.

        A later forward, such as of recomputation, overwrites ``load``.

        Returns:
            Logits float32 [T, E]; weights of the k chosen, in ``hidden``'s dtype, and which, [T, k].
        """
        logits = F.linear(hidden.reshape(-1, hidden.shape[-1]).float(), self.weight.float())
        logs, scores, own = self._scored(logits)
        given = self.given
        chosen = own if given is None else torch.where(given < 0, own, given)
        weights = self._weighed(scores.gather(1, chosen))
        real = len(chosen) - self.padding
        self._observe(logs.detach()[:real], chosen[:real])
        if given is not None:
            self._compare(given[:real], own[:real])
        return logits, weights.to(hidden.dtype), chosen

    def _scored(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of logits [T, E]: logs of the distribution over experts and their scores, [T, E]; its own choice [T, k]."""
        logs = logits.log_softmax(dim=-1)
        scores = logs.exp()
        return logs, scores, scores.detach().topk(self.top_k, dim=-1).indices

    def _weighed(self, scores: Tensor) -> Tensor:
        """Weights [T, k] by the scores of the chosen."""
        return scores / scores.sum(dim=-1, keepdim=True) if self.norm_topk_prob else scores

    @torch.no_grad()
    def _observe(self, logs: Tensor, chosen: Tensor) -> None:
        found = torch.zeros_like(self.load)
        counts, sums = found[: -len(SUMS)], found[-len(SUMS) :]
        counts.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen, dtype=found.dtype).flatten())
        sums[0] = -(logs.exp() * logs).sum(dtype=found.dtype)
        sums[1].fill_(len(chosen))  # an assignment would wait for the device
        self.load.copy_(found)

    @torch.no_grad()
    def _compare(self, given: Tensor, own: Tensor) -> None:
        """Count the tokens whose experts are given, and those of them that would go elsewhere."""
        is_given = given[:, 0] >= 0
        differs = (given.sort(dim=-1).values != own.sort(dim=-1).values).any(dim=-1) & is_given
        self.load[-2:] = torch.stack([is_given.sum(), differs.sum()]).to(self.load.dtype)


class SigmoidRouter(Router):
    """Chooses by each expert's own score and a bias, within the best groups of experts; weighs by scores alone.

    The bias was found where the model was trained first, by how evenly tokens went to experts. It has no gradient, and
    stays as it is.
    """

    e_score_correction_bias: Tensor

    def __init__(self, router: Glm4MoeTopkRouter) -> None:
        super().__init__(router)
        self.groups, self.best_groups = router.num_group, router.topk_group
        self.scale = router.routed_scaling_factor
        # Under the name that a folder has it by; float32 [E].
        self.register_buffer("e_score_correction_bias", router.e_score_correction_bias)

    def _scored(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = logits.sigmoid()
        with torch.no_grad():
            own = self._favoured(scores + self.e_score_correction_bias).topk(self.top_k, dim=-1).indices
        logs = F.logsigmoid(logits.detach())
        return logs - logs.logsumexp(dim=-1, keepdim=True), scores, own

    def _weighed(self, scores: Tensor) -> Tensor:
        weights = scores / (scores.sum(dim=-1, keepdim=True) + _LEAST) if self.norm_topk_prob else scores
        return weights.mul(self.scale)

    def _favoured(self, scores: Tensor) -> Tensor:
        """``scores`` [T, E] without those of all but the best groups, which are told by their two best experts."""
        if self.best_groups == self.groups:
            return scores
        grouped = scores.view(len(scores), self.groups, -1)
        best = grouped.topk(_GROUP_LEAST, dim=-1).values.sum(dim=-1).topk(self.best_groups, dim=-1).indices
        # No tensor of ones to scatter into: with it the compiler loses the number of tokens from a checkpointed layer.
        is_best = (best[:, :, None] == torch.arange(self.groups, device=scores.device)).any(dim=1)
        return torch.where(is_best[:, :, None], grouped, -torch.inf).view_as(scores)


class _ToExperts(torch.autograd.Function):
    """Copies of tokens [T, H], one for each of their experts, in the order of experts [T k, H]."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.tokens = len(tokens)
        return _copies(tokens, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return _sums(gradients[0], inverse, ctx.tokens), None, None


class _FromExperts(torch.autograd.Function):
    """Sums of rows in the order of experts [T k, H] over the k of each of T tokens [T, H]."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor, tokens: int) -> Tensor:
        ctx.save_for_backward(order)
        return _sums(rows, inverse, tokens)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (order,) = ctx.saved_tensors
        return _copies(gradients[0], order), None, None, None


def _copies(tokens: Tensor, order: Tensor) -> Tensor:
    return tokens[order // (len(order) // len(tokens))]


def _sums(rows: Tensor, inverse: Tensor, tokens: int) -> Tensor:
    # One by one: as a reduction of what was gathered, the compiler's kernel takes several times as long.
    first, *others = inverse.view(tokens, -1).unbind(dim=1)
    total = rows[first].float()
    for places in others:
        total = total + rows[places]
    return total.to(rows.dtype)


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
    ends = torch.searchsorted(ids, torch.arange(1, experts.num_experts + 1, device=ids.device)).to(torch.int32)
    sorted_hidden: Tensor = _ToExperts.apply(hidden, order, inverse)  # type: ignore[no-untyped-call]
    weight = permuted(weights.reshape(-1, 1), order, inverse)
    split: ExpertSplit | None = getattr(experts, "split", None)
    products = functools.partial(_products, experts)
    multiplied = products if split is None else functools.partial(split.apply, products)
    rows = multiplied(sorted_hidden, weight, ends)
    total: Tensor = _FromExperts.apply(rows, order, inverse, len(hidden))  # type: ignore[no-untyped-call]
    return total


def _products(experts: Any, rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Rows [N, H] in the order of experts, the last of each at ``ends``, through the experts' two matrices."""
    inside = experts._apply_gate(_grouped_linear(rows, local(experts.gate_up_proj), ends))
    made: Tensor = _grouped_linear((inside * weight).to(rows.dtype), local(experts.down_proj), ends)
    return made


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
    told_apart = best == groups or size >= _GROUP_LEAST
    if rest or not 1 <= best <= groups or not told_apart or best * size < config.num_experts_per_tok:
        found.append(f"groups of experts that do not add up (n_group {groups}, topk_group {best})")
    return found


def replace_routers(model: nn.Module) -> None:
    """Put a ``Router`` in the place of each of transformers'; parameters, stored buffers and their names stay."""
    for module in list(model.modules()):
        gate = getattr(module, "gate", None)
        if isinstance(gate, Qwen3MoeTopKRouter):
            module.gate = Router(gate)
        elif isinstance(gate, Glm4MoeTopkRouter):
            module.gate = SigmoidRouter(gate)


def routers(model: nn.Module) -> list[Router]:
    """All routers, in the order of layers, of which some may have none; none of a dense model."""
    return [module for module in model.modules() if isinstance(module, Router)]


def router_shape(found: list[Router]) -> RouterShape | None:
    """What the routers of a model have to choose from; None: there are none."""
    return RouterShape(len(found), 0, len(found[0].weight), found[0].top_k) if found else None


def give_choices(found: list[Router], chosen: Tensor | None) -> None:
    """Have the routers of all layers send the tokens of the next forward, and of its recomputation, where it says.

    ``chosen``: int [T, layers with experts, k], rows of ``NOT_GIVEN`` among them; None: every router chooses itself.
    """
    for layer, router in enumerate(found):
        router.given = None if chosen is None else chosen[:, layer].long()


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
