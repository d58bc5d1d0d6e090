"""A transformers causal language model as a policy: packed tokens in, logprobs of chosen tokens out."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import AutoConfig, AutoModelForCausalLM

from echorl_core.config import LoraConfig, ModelConfig
from echorl_trainer.attention import NAME as ATTENTION
from echorl_trainer.attention import Documents, document_layout
from echorl_trainer.context import ContextGroup, ContextSlice
from echorl_trainer.experts import FAMILIES, PRODUCTS, has_experts, unsupported
from echorl_trainer.head import Objective, token_logprobs, token_loss
from echorl_trainer.routers import NOT_GIVEN, give_choices, replace_routers, routers
from echorl_trainer.varlen_kernels import kernel_operators

Checkpointing = Literal["none", "selective", "full"]

HEAD = "lm_head.weight"

WINDOWED = ("gemma2", "gemma3_text", "mistral", "qwen2", "qwen3")
"""Model types whose sliding windows and softcaps were checked; of others both are refused."""
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


@dataclass(frozen=True)
class PackedTokens:
    """T tokens of S documents end to end, on the device, and which of them are scored."""

    token_ids: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T], from 0 in every document."""
    cu_seqlens: Tensor
    """int32 [S + 1]: document s is tokens ``cu_seqlens[s]:cu_seqlens[s + 1]``."""
    max_len: int
    """Tokens of the longest document."""
    rows: Tensor
    """int64 [K]: tokens whose logprob is wanted; never a document's first."""
    temperature: Tensor
    """float32 [T], above 0 at ``rows``."""
    row_counts: tuple[int, ...] = ()
    """Where ranks share the pack: how many of ``rows`` each of them scores (``context.row_counts``)."""
    experts: Tensor | None = None
    """Int [T, layers with experts, k]: which each token goes to, as engines routed it, else ``routers.NOT_GIVEN``.
    None: the model's routers choose for all."""


class TokenScores(NamedTuple):
    """What the policy says of the K tokens in ``PackedTokens.rows``. A tuple, so FSDP finds the tensors in it."""

    logprobs: Tensor
    """float32 [K]: natural log of the tempered probability of the token given its document so far."""
    entropy: Tensor
    """float32 [K], nats, of the tempered distribution that the token was drawn from; carries no gradient."""
    loss: Tensor | None = None
    """What the objective makes of the logprobs, a scalar float32, and then the only one with a gradient."""


@dataclass(frozen=True)
class Adapter:
    """What trains in place of a model's weights."""

    config: LoraConfig


class Policy(nn.Module):
    """Wraps a causal language model. Dropout is off: the trained function is the one that sampled."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model.eval()
        self._routers = routers(model)
        self._softcap: float | None = getattr(model.config, "final_logit_softcapping", None)
        self.dtype = dtype
        """Precision of published weights."""
        self.compute_dtype = torch.float32
        """``shard`` sets it."""
        self.compiled = False
        """Whether its layers are; ``compile_layers`` sets it."""
        self.context: ContextGroup | None = None
        """``shard`` sets it; None: packs are this rank's alone."""
        self.adapter: Adapter | None = None
        """``lora.attach`` sets it; None: all weights train."""
        self.fingerprint = ""
        """What tells one start model from another; ``load_weights`` sets it."""

    @property
    def layers(self) -> nn.ModuleList:
        """The transformer layers."""
        layers = self.model.get_decoder().layers
        assert isinstance(layers, nn.ModuleList)  # noqa: S101 - checked when the policy was loaded
        return layers

    @property
    def tied(self) -> bool:
        """Whether the output head is the embedding."""
        return self.model.lm_head.weight is self.model.get_input_embeddings().weight

    def forward(self, micro: PackedTokens, objective: Objective | None = None) -> TokenScores:
        """Score ``micro.rows``: token t by the logits at t - 1 divided by token t's temperature.

        ``objective``: a loss whose tokens do not depend on each other, computed along with its gradients. Where ranks
        share the pack, all of them are given all of it, and each gets the scores and the loss of all of it.
        """
        if self.context is not None:
            return self._shared_forward(micro, objective, self.context.slice_of(len(micro.token_ids)))
        documents = document_layout(micro.cu_seqlens, micro.max_len, self.compute_dtype)
        give_choices(self._routers, micro.experts)
        hidden = self._hidden(micro.token_ids, micro.positions, documents)
        columns = self._head_columns(hidden, micro.rows - 1, micro, micro.rows)
        if objective is None:
            return TokenScores(*token_logprobs(*columns, softcap=self._softcap))
        loss, logprobs, entropy = token_loss(*columns, objective, softcap=self._softcap)
        return TokenScores(logprobs, entropy, loss)

    def _shared_forward(self, micro: PackedTokens, objective: Objective | None, part: ContextSlice) -> TokenScores:
        documents = document_layout(micro.cu_seqlens, micro.max_len, self.compute_dtype, part.exchange)
        for router in self._routers:
            router.padding = part.padding
        give_choices(self._routers, None if micro.experts is None else part.part(micro.experts, NOT_GIVEN))
        hidden = self._hidden(part.part(micro.token_ids), part.part(micro.positions), documents)
        counts, index = micro.row_counts, part.of.index
        before, after = sum(counts[:index]), sum(counts[index + 1 :])
        rows = micro.rows[before : before + counts[index]]
        columns = self._head_columns(hidden, rows - 1 - part.begin, micro, rows)
        if objective is None:
            own_scores = torch.stack(token_logprobs(*columns, softcap=self._softcap))
            logprobs, entropy = part.gathered(own_scores, counts).unbind()
            return TokenScores(logprobs, entropy.detach())
        # Of other ranks' tokens, too, since a loss knows its tokens by their place; what it makes of them is not used.
        own, *scores = token_loss(
            *columns, lambda logprobs: objective(pad(logprobs, (before, after))), softcap=self._softcap
        )
        logprobs, entropy = part.gathered(torch.stack(scores), counts).unbind()
        return TokenScores(logprobs, entropy, _WithValue.apply(own, objective(logprobs)))  # type: ignore[no-untyped-call]

    def _hidden(self, token_ids: Tensor, positions: Tensor, documents: Documents) -> Tensor:
        """Last hidden states [T, H] of tokens [T]."""
        output = self.model.get_decoder()(
            input_ids=token_ids[None],
            position_ids=positions[None],
            attention_mask=None,
            use_cache=False,
            documents=documents,
        )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _head_columns(
        self, hidden: Tensor, places: Tensor, micro: PackedTokens, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the head scores ``rows`` by: hidden states at ``places``, its weights, targets, temperatures."""
        return hidden[places], self.model.lm_head.weight, micro.token_ids[rows], micro.temperature[rows]


class _WithValue(torch.autograd.Function):
    """A scalar of another value, that has the first one's gradient."""

    @staticmethod
    def forward(ctx: Any, _scalar: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def meta_policy(config: ModelConfig) -> Policy:
    """A model folder's architecture in float32 on the meta device: shapes and names, no memory. Nothing is downloaded.

    Raises:
        ValueError: there is no model, or it is of a kind not supported yet.
    """
    if not (Path(config.path) / "config.json").is_file():
        raise ValueError(f"model.path: {config.path} holds no config.json")
    described = AutoConfig.from_pretrained(config.path, local_files_only=True)
    refuse_unsupported(described)
    policy = Policy(meta_model(described), getattr(torch, config.dtype))
    _check_structure(policy)
    return policy


def meta_model(described: Any) -> Any:
    """The model of a transformers config as it is trained: with our attention and, of experts, our routers."""
    experts = {"experts_implementation": PRODUCTS} if has_experts(described) else {}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            described, dtype=torch.float32, attn_implementation=ATTENTION, **experts
        )
    replace_routers(model)
    return model


def fill_buffers(model: Any) -> None:
    """Compute what no file holds, such as rotary frequencies; parameters and stored buffers stay as they are.

    transformers computes it where it initialises weights, and passes over tensors that bear its mark.
    """
    for tensor in model.state_dict(keep_vars=True).values():
        tensor._is_hf_initialized = True
    model.initialize_weights()


def refuse_unsupported(config: Any) -> None:
    """Refuse model kinds that this trainer would compute wrongly.

    Raises:
        ValueError: "not supported yet: ..." with what was found.
    """
    found = []
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if has_experts(config):
        found += unsupported(config)
    elif any((getattr(config, name, None) or 0) > 1 for name in experts):
        found.append(f"mixture of experts other than {', '.join(FAMILIES)}")
    if any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config")):
        found.append("vision and audio models")
    found += _unsupported_attention(config)
    if getattr(config, "quantization_config", None) is not None:
        found.append("quantised weights")
    if found:
        raise ValueError(f"not supported yet: {', '.join(found)} (model type {config.model_type})")


def _unsupported_attention(config: Any) -> list[str]:
    found = set(getattr(config, "layer_types", None) or []) - {"full_attention"}
    if getattr(config, "sliding_window", None) is not None and getattr(config, "use_sliding_window", True):
        found.add("sliding_attention")
    found |= {name for name in _CAPS if getattr(config, name, None) is not None}
    if config.model_type in WINDOWED:
        found -= {"sliding_attention", *_CAPS}
    if getattr(config, "use_bidirectional_attention", None):
        found.add("attention in both directions (use_bidirectional_attention)")
    return sorted(found)


def refuse_unshared(config: Any, context: int) -> None:
    """Refuse models of which a slice of a pack does not know enough, where ``context`` ranks share packs.

    Raises:
        ValueError: rotations depend on the largest position there is.
    """
    described = getattr(config, "rope_parameters", None) or {}
    kinds = {str(one.get("rope_type")) for one in (described, *described.values()) if isinstance(one, dict)}
    if context > 1 and (found := kinds & {"dynamic", "longrope"}):
        raise ValueError(f"not supported yet: context parallelism with rotary positions of type {', '.join(found)}")


def _check_structure(policy: Policy) -> None:
    model = policy.model
    decoder = model.get_decoder()
    if decoder is None or not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ValueError(f"not supported yet: {type(model).__name__} keeps its layers elsewhere than decoder.layers")
    if not isinstance(getattr(model, "lm_head", None), nn.Linear) or model.lm_head.bias is not None:
        raise ValueError(f"not supported yet: {type(model).__name__} has no lm_head, or one with a bias")


_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.echorl.grouped_product.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._flash_attention_forward.default,
    *kernel_operators(),
}


def _keep_products(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_layers(policy: Policy, mode: Checkpointing) -> None:
    """Trade memory for time in every layer: ``full`` recomputes all of it in backward, ``selective`` all but products.

    Products are matrix multiplications and attention. Parameter names stay as they are.
    """
    if mode == "none":
        return
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)
    options: dict[str, Any] = {"context_fn": contexts} if mode == "selective" else {}
    for layer in policy.layers:
        layer.forward = _checkpointed(layer.forward, options)


def _checkpointed(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    # A function of our own, since the compiler looks into no functools.partial around checkpoint.
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **options, **kwargs)

    return checkpointed


def compile_layers(policy: Policy) -> None:
    """Compile every layer by itself, for packs of any length."""
    for layer in policy.layers:
        layer.compile(dynamic=True)
    policy.compiled = True
