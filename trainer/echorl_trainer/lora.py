"""Low-rank adapters on a policy: float32 factors beside frozen weights (LoRA, arXiv:2106.09685).

    y = x W^T + alpha / rank * (x A^T) B^T          A: [rank, in], B: [out, rank], zeros at the start

Only A and B train, are checkpointed and are published. Their names are PEFT's, so nothing is renamed on the way out.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own word
from torch import Tensor, nn

from echorl_core import adapters
from echorl_core.config import LoraConfig
from echorl_trainer.experts import has_experts, published, stored_buffers
from echorl_trainer.model import Adapter, Policy
from echorl_trainer.shards import Portion, local, rows_of


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; ``weight`` and ``bias`` are those of the layer that it takes the place of."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        """The factors lie where the layer does, without values: ``draw_adapter`` gives them."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.scaling = alpha / rank
        device = layer.weight.device
        self.lora_A = nn.Linear(self.in_features, rank, bias=False, device=device)
        self.lora_B = nn.Linear(rank, self.out_features, bias=False, device=device)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        """``input``: [..., in]; the answer is [..., out], both of the compute dtype."""
        change: Tensor = self.lora_B(self.lora_A(input))
        return F.linear(input, self.weight, self.bias) + self.scaling * change


@dataclass(frozen=True)
class _Place:
    owner: nn.Module
    name: str
    layer: nn.Linear


def attach(policy: Policy, config: LoraConfig) -> None:
    """Freeze ``policy`` and put an adapter on every linear layer that ``config`` names; before ``shard``.

    Raises:
        ValueError: a target names no linear layer; the policy is as it was.
    """
    places = dict(_linear_layers(policy))
    try:
        chosen = adapters.chosen_modules(places, config.target_modules)
    except adapters.UnknownModule as error:
        raise ValueError(f"model.lora.target_modules: {error}") from error
    policy.adapter = Adapter(config)
    policy.requires_grad_(requires_grad=False)
    for name in chosen:
        place = places[name]
        setattr(place.owner, place.name, LoraLinear(place.layer, config.rank, config.alpha))


@torch.no_grad()
def draw_adapter(policy: Policy, *, seed: int) -> None:
    """Give the adapter its start: A uniform in +-1/sqrt(in), as PEFT and the authors' code draw it, B zero.

    A depends on ``seed`` and its layer's name alone: not on the number of ranks, nor on other targets.
    """
    for name, module in policy.model.named_modules():
        if isinstance(module, LoraLinear):
            digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            bound = 1.0 / math.sqrt(module.in_features)
            start = torch.empty(module.lora_A.weight.shape).uniform_(-bound, bound, generator=generator)
            local(module.lora_A.weight).copy_(start[rows_of(module.lora_A.weight)])
            local(module.lora_B.weight).zero_()


def _linear_layers(policy: Policy) -> Iterator[tuple[str, _Place]]:
    """Linear layers of the transformer layers by their Hugging Face names; of a mixture those of attention."""
    inside = {id(module) for module in policy.layers.modules()}
    mixed = has_experts(policy.model.config)
    for name, module in policy.model.named_modules():
        if isinstance(module, nn.Linear) and id(module) in inside and not (mixed and adapters.MIXED in name):
            owner, _, last = name.rpartition(".")
            yield name, _Place(policy.model.get_submodule(owner), last, module)


@torch.no_grad()
def store_frozen(policy: Policy, dtype: torch.dtype) -> None:
    """Keep frozen weights in the dtype that they are computed in; those that train stay float32."""
    for parameter in policy.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def published_parameters(policy: Policy) -> dict[str, Tensor | Portion]:
    """What a policy version consists of: the adapter under PEFT's names, or all weights under Hugging Face's.

    A head that is the embedding is not among them, as in Hugging Face's folders; buffers that these hold are.
    """
    buffers, named = stored_buffers(policy.model), policy.model.named_parameters()
    if policy.adapter is None:
        return dict(each for name, one in named for each in published(name, one)) | buffers
    return {adapters.TENSOR_PREFIX + name: one for name, one in named if one.requires_grad}
