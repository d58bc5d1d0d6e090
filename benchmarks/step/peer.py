"""The peer: transformers, flex_attention with document masks, torch.compile, all logits at once, as TRL forms them.

Weights are float32 and products bfloat16 by autocast, as in ours. It trains the same documents, tokens and weights of
tokens, and measures nothing beside its loss.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own word
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, AutoModelForCausalLM

from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole

NAME = "benchmark_flex"
ROWS = 1024
"""Rows of which the log-softmax is formed at once."""
CLIP = 0.2
_flex: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
_blocks: Callable[..., BlockMask] = torch.compile(create_block_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    *,
    documents: BlockMask | Tensor,
    **_: Any,
) -> tuple[Tensor, None]:
    query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves rotated ones in float32
    if isinstance(documents, BlockMask):
        output: Tensor = _flex(query, key, value, block_mask=documents, enable_gqa=True)
    else:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=documents, enable_gqa=True)
    return output.transpose(1, 2), None


AttentionInterface.register(NAME, _attention)


class Peer:
    """A model with its optimizer; ``run`` trains one step."""

    def __init__(self, folder: Path, device: torch.device, lr: float) -> None:
        self._device = device
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, attn_implementation=NAME
        ).to(device)
        self._decoder = torch.compile(self.model.model) if device.type == "cuda" else self.model.model
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=device.type == "cuda")

    def run(self, batch: RankBatch) -> float:
        """One step; seconds, the device's queue drained before and after."""
        self._wait()
        begin = time.perf_counter()
        for micro in batch.micro_batches:
            self._loss(micro, batch.denominators).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values).to(self._device, non_blocking=True)

    def _loss(self, micro: MicroBatch, denominators: dict[str, float]) -> Tensor:
        lengths = self._tensor(micro.lengths).long()
        tokens = self._tensor(micro.token_ids).long()
        total = len(micro.token_ids)
        document = torch.repeat_interleave(torch.arange(len(lengths), device=self._device), lengths, output_size=total)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(total, device=self._device) - starts[document]

        def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (document[query] == document[key])

        everywhere = torch.arange(total, device=self._device)
        # Elsewhere flex_attention has no gradients.
        mask = (
            _blocks(visible, None, None, total, total, device=self._device)
            if self._device.type == "cuda"
            else visible(everywhere, everywhere, everywhere[:, None], everywhere)
        )
        with torch.autocast(self._device.type, torch.bfloat16):
            hidden = self._decoder(
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask={"full_attention": None},
                use_cache=False,
                documents=mask,
            ).last_hidden_state[0]
            scored = (micro.role == TokenRole.ACTION) | (micro.role == TokenRole.ENV_OUTPUT)
            rows = self._tensor(scored.nonzero()[0])
            logits = self.model.lm_head(hidden[rows - 1])
        logits = logits / self._tensor(micro.temperature)[rows, None].to(logits.dtype)
        parts = zip(logits.split(ROWS), tokens[rows].split(ROWS), strict=True)
        logprobs = torch.cat([F.log_softmax(part, -1).gather(1, ids[:, None])[:, 0] for part, ids in parts]).float()
        ratio = (logprobs - self._tensor(micro.logprobs)[rows]).exp()
        advantage = self._tensor(micro.advantage)[rows]
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        rl = -(gain * self._tensor(micro.rl_weight)[rows]).sum() / max(denominators["rl"], 1.0)
        ce = -(logprobs * self._tensor(micro.ce_weight)[rows]).sum() / max(denominators["ce"], 1.0)
        return rl + ce
