"""Everything that depends on vLLM's inside; written for 0.25.1 to 0.32 (the same calls are in both)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from echorl_vllm.validation import ModelForm, model_form

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def loaded_model_form(worker: Any) -> ModelForm:
    """What the folder that this worker loaded its model from consists of."""
    config = worker.vllm_config.model_config
    return model_form(
        Path(config.model),
        tied=bool(getattr(config.hf_text_config, "tie_word_embeddings", False)),
        engine_dtype=_SAFETENSORS_NAMES.get(config.dtype),
    )


def load_tensors(worker: Any, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Replace the model's weights in place (compiled graphs keep their addresses); generation must be paused.

    Should this raise, the model is half replaced and of no further use.
    """
    model = worker.model_runner.get_model()
    with torch.no_grad(), set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(model)
        model.load_weights(tensors)
        finalize_layerwise_reload(model, worker.vllm_config.model_config)
    for reset in ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"):
        getattr(worker.model_runner, reset, lambda: None)()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
