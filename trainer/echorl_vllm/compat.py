"""Everything that depends on vLLM's inside; written for 0.25.1 to 0.32 (the same calls are in both)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.config import set_current_vllm_config
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from echorl_core.faults import fault_point
from echorl_core.names import SERVED_MODEL_NAME
from echorl_vllm.adapter import FOLDER as ADAPTER_FOLDER
from echorl_vllm.adapter import install
from echorl_vllm.environment import work_folder
from echorl_vllm.staging import Staged
from echorl_vllm.validation import ModelForm, adapter_form, model_form
from echorl_vllm.weights import one_by_one

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def loaded_form(worker: Any) -> ModelForm:
    """What this worker takes: tensors of the folder that it loaded its model from, or of its adapter."""
    if worker.vllm_config.lora_config is not None:
        return adapter_form(work_folder() / ADAPTER_FOLDER)
    config = worker.vllm_config.model_config
    return model_form(
        Path(config.model),
        tied=bool(getattr(config.hf_text_config, "tie_word_embeddings", False)),
        engine_dtype=_SAFETENSORS_NAMES.get(config.dtype),
    )


def load(worker: Any, staged: Staged) -> None:
    """Replace the model's weights, or its adapter, in place; generation must be paused.

    Should this raise, the model is of no further use.
    """
    if worker.vllm_config.lora_config is None:
        load_tensors(worker, one_by_one(staged))
    else:
        load_adapter(worker, staged.folder)


def load_adapter(worker: Any, source: Path) -> None:
    """Replace the one adapter that the engine was started with, under the number that its requests carry.

    The request says ``load_inplace`` here alone: vLLM would read the adapter again for every batch of requests with it.
    """
    held = worker.list_loras()
    if len(held) != 1:
        raise RuntimeError(f"the worker holds adapters {sorted(held)}, accepted is exactly one")
    folder = work_folder() / ADAPTER_FOLDER
    install(source, folder)
    fault_point("engine.mid_apply")
    worker.add_lora(
        LoRARequest(lora_name=SERVED_MODEL_NAME, lora_int_id=next(iter(held)), lora_path=str(folder), load_inplace=True)
    )
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
