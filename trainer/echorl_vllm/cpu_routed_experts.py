"""Routed experts of vLLM's engines on CPUs; written for 0.32, which returns them from the model runner of GPUs alone.

All else is there on CPUs as well: routers tell what they chose to whoever asks, and scheduler and API server take what
a runner brings. So the runner of CPUs is given the calls that the other one makes: of ``begin_step`` before a forward,
and of ``prepare_output`` and what follows after it. Steps come one after the other there, so nothing is in flight.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.config import VllmConfig
from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector, get_aux_output_connector
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

_CONNECTOR = "echorl_aux_output_connector"


def install() -> None:
    """Have this process's CPU runner return routed experts where ``--enable-return-routed-experts`` asks for them."""
    VllmConfig._verify_aux_output_compatibility = _verify
    CPUModelRunner.initialize_kv_cache = _initializing(CPUModelRunner.initialize_kv_cache)
    CPUModelRunner.execute_model = _executing(CPUModelRunner.execute_model)
    CPUModelRunner.sample_tokens = _sampling(CPUModelRunner.sample_tokens)


def _verify(config: VllmConfig) -> None:
    """In place of vLLM's check, which asks for the other model runner; what routed experts need stays asked for."""
    if not config.aux_output_config.enabled:
        return
    if not config.model_config.is_moe or not config.cache_config.enable_prefix_caching:
        raise ValueError("--enable-return-routed-experts needs a mixture of experts, and prefix caching")


def _initializing(inner: Callable[..., None]) -> Callable[..., None]:
    def initialize_kv_cache(runner: Any, kv_cache_config: Any, *arguments: Any, **options: Any) -> None:
        inner(runner, kv_cache_config, *arguments, **options)
        is_profiling = any(arguments) or options.get("is_profiling", False)
        if runner.vllm_config.aux_output_config.enabled and not is_profiling:
            connector = get_aux_output_connector(runner.get_model(), runner.vllm_config, kv_cache_config)
            setattr(runner, _CONNECTOR, connector)

    return initialize_kv_cache


def _executing(inner: Callable[..., Any]) -> Callable[..., Any]:
    def execute_model(runner: Any, scheduler_output: Any, intermediate_tensors: Any = None) -> Any:
        if (connector := getattr(runner, _CONNECTOR, None)) is not None:
            connector.begin_step(scheduler_output.aux_output_connector_metadata)
        return inner(runner, scheduler_output, intermediate_tensors)

    return execute_model


def _sampling(inner: Callable[..., Any]) -> Callable[..., Any]:
    def sample_tokens(runner: Any, grammar_output: Any) -> Any:
        connector, state = getattr(runner, _CONNECTOR, None), runner.execute_model_state
        if connector is None or state is None:
            return inner(runner, grammar_output)
        scheduled = state[0]
        batch = _batch(runner.input_batch, scheduled.num_scheduled_tokens)
        output = inner(runner, grammar_output)
        output.aux_output_connector_output = _told(connector, batch, scheduled, output)
        return output

    return sample_tokens


def _batch(input_batch: Any, scheduled: dict[str, int]) -> SimpleNamespace:
    """The step's requests in the order of their rows, as the other runner's batch names it."""
    request_ids = list(input_batch.req_ids)
    return SimpleNamespace(
        req_ids=request_ids,
        num_computed_tokens_np=input_batch.num_computed_tokens_cpu[: len(request_ids)].copy(),
        query_start_loc_np=np.cumsum([0, *(scheduled[request] for request in request_ids)]),
    )


def _told(connector: AuxOutputWorkerConnector, batch: SimpleNamespace, scheduled: Any, output: Any) -> Any:
    """What the step's rows say of each request; None where nobody is told, as on all but one rank."""
    pending = connector.prepare_output(batch)
    if pending is None:
        return None
    sampled = [len(output.sampled_token_ids[output.req_id_to_index[request]]) for request in batch.req_ids]
    guessed = [len(scheduled.scheduled_spec_decode_tokens.get(request, ())) for request in batch.req_ids]
    # Of guesses all but the right ones are rejected; a token is sampled behind those.
    rejected = [most + 1 - count if count and most else 0 for most, count in zip(guessed, sampled, strict=True)]
    pending.enqueue_cpu_copy(np.array(sampled), np.array(rejected))
    return pending.process_output()
