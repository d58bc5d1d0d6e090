"""Everything that depends on vLLM's inside; written for 0.25.1 to 0.32 (the same calls are in both)."""

import logging
import time
from collections.abc import Iterator, Mapping
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
from echorl_vllm.recording import Copies, NotPlainError, check_equal, record
from echorl_vllm.staging import Staged
from echorl_vllm.validation import ModelForm, adapter_form, model_form
from echorl_vllm.weights import one_by_one

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.loading")

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def loaded_form(worker: Any) -> ModelForm:
    """What this worker takes: tensors of the folder that it loaded its model from, or of its adapter."""
    if worker.vllm_config.lora_config is not None:
        return adapter_form(work_folder() / ADAPTER_FOLDER)
    config = worker.vllm_config.model_config
    # A head that is the embedding has two names.
    modules = worker.model_runner.get_model().named_modules(remove_duplicate=False)
    return model_form(
        Path(config.model),
        tied=bool(getattr(config.hf_text_config, "tie_word_embeddings", False)),
        engine_dtype=_SAFETENSORS_NAMES.get(config.dtype),
        has_head=any(name.rpartition(".")[2] == "lm_head" for name, _ in modules),
    )


def device_of(worker: Any) -> torch.device:
    """Where this worker's model is."""
    device: torch.device = next(worker.model_runner.get_model().parameters()).device
    return device


class Loader:
    """How one worker takes versions: by vLLM's loading, and by recorded copies once these are known to be all of it."""

    def __init__(self, worker: Any) -> None:
        if worker.vllm_config.speculative_config is not None and device_of(worker).type == "cpu":
            mend_temperatures()
        self._worker = worker
        self._copies: Copies | None = None
        self._looked = False

    def bring(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Bring some of a version's tensors to the device where copies are all that is needed; from any thread."""
        if self._copies is None:
            return False
        self._copies.stage(tensors)
        return True

    def load(self, staged: Staged) -> None:
        """Replace the model's weights, or its adapter, in place; generation must be paused.

        Should this raise, the model is of no further use.
        """
        if self._worker.vllm_config.lora_config is not None:
            assert staged.folder is not None  # noqa: S101 - adapters are fetched, always
            load_adapter(self._worker, staged.folder)
        elif staged.on_device and self._copies is not None:
            fault_point("engine.mid_apply")
            self._copies.replay()
            settle(self._worker)
        else:
            load_tensors(self._worker, one_by_one(staged))
            if not self._looked:
                self._looked = True
                self._copies = recorded(self._worker, staged)


def recorded(worker: Any, staged: Staged) -> Copies | None:
    """Copies that do what loading ``staged``, which the model holds, did; None, and a warning, if none do.

    On CPUs vLLM repacks what it loads, so there nothing is looked for.
    """
    model = worker.model_runner.get_model()
    device = next(model.parameters()).device
    if device.type != "cuda":
        return None
    began = time.monotonic()
    try:
        if (found := derived_state(model)) is not None:
            raise NotPlainError(found)
        with set_current_vllm_config(worker.vllm_config):
            pieces = record(dict(model.named_parameters()), model.load_weights, staged.tensors)
        check_equal(pieces, staged.tensors)
        needed, (free, _) = sum(piece.target.nbytes for piece in pieces), torch.cuda.mem_get_info(device)
        # What vLLM leaves free is for peaks that its own measurement does not know.
        if needed > free // 2:
            raise NotPlainError(f"{needed} bytes of staging are more than half of the {free} that are free")
        copies = Copies(pieces)
    except (NotPlainError, torch.OutOfMemoryError) as error:
        log.warning("weights are loaded by vLLM at every update, which takes longer under the pause: %s", error)
        return None
    seconds = time.monotonic() - began
    log.info("weights are copied: %d pieces, %d bytes, found in %.3f s", len(pieces), copies.size_bytes, seconds)
    return copies


def derived_state(model: torch.nn.Module) -> str | None:
    """What a model computes with beside its parameters as they were published, as far as one can see; None: nothing."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        method = getattr(module, "quant_method", None)
        if method is not None and not type(method).__name__.startswith("Unquantized"):
            return f"{name}: has {type(method).__name__}"
        if "MLA" in kind:
            return f"{name}: {kind} derives weights of its own"
        for key, value in vars(module).items():
            if isinstance(value, torch.Tensor) and value.numel() > 1 and key != "kv_cache":
                return f"{name}: has {key} beside its parameters"
    return None


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
        forget_packed_experts(model)
        initialize_layerwise_reload(model)
        model.load_weights(tensors)
        finalize_layerwise_reload(model, worker.vllm_config.model_config)
    settle(worker)


def forget_packed_experts(model: torch.nn.Module) -> None:
    """On CPUs, have vLLM pack experts as at its start: 0.32 leaves that out where it holds their kernel already."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None and next(module.parameters()).device.type == "cpu":
            method.moe_kernel = None


def mend_temperatures() -> None:
    """On CPUs, have guessed tokens checked at their temperatures.

    0.32 writes these into a copy that is dropped there, and divides logits by what the memory held before.
    """
    from vllm.v1.sample import rejection_sampler  # noqa: PLC0415 - of the first model runner, which GPUs do not take

    rejection_sampler.expand_batch_to_tokens = expanded


def expanded(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: float = 0, replace_to: float = 0
) -> torch.Tensor:
    """Give each token what its request has, as vLLM's function of these arguments does on GPUs.

    Args:
        x: of each request [r]; ``replace_from`` counts as ``replace_to``.
        cu_num_tokens: where each request's tokens end [r], ascending.
        num_tokens: of all requests, n.
        replace_from: a value that is not passed on.
        replace_to: what is passed on in its place.

    Returns:
        Of each token [n].
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def settle(worker: Any) -> None:
    """Forget what was computed with the weights before, and wait until the device has the new ones."""
    for reset in ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"):
        getattr(worker.model_runner, reset, lambda: None)()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
