"""Routers of mixtures of experts: what they choose, or are given, and what is counted of it."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own word
from torch import Tensor, nn
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

from echorl_core.routing import RouterShape

_LEAST = 1e-20
"""Added to a sum of weights, as transformers does."""
GROUP_LEAST = 2
"""Experts of a group, by whose best scores it is told from others."""
SUMS = ("entropy", "tokens", "given", "differing")
"""What a router counts beside loads: the sum of its entropies, its tokens, those whose experts were given, and those of
them that it would have sent to others."""
NOT_GIVEN = -1
"""Stands for each expert of a token that the router chooses for itself."""


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
        best = grouped.topk(GROUP_LEAST, dim=-1).values.sum(dim=-1).topk(self.best_groups, dim=-1).indices
        # No tensor of ones to scatter into: with it the compiler loses the number of tokens from a checkpointed layer.
        is_best = (best[:, :, None] == torch.arange(self.groups, device=scores.device)).any(dim=1)
        return torch.where(is_best[:, :, None], grouped, -torch.inf).view_as(scores)


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
