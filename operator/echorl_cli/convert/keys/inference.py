"""Keys of ``[inference]``."""

from collections.abc import Iterator

from echorl_cli.convert.keys.row import Key, made, none

ENGINE = "inference.vllm"
_ADDRESSES = "EchoRL chooses addresses itself"
_EXPERTS = "experts are not split within an engine, and routers are as the model has them"
_ADAPTERS = "follows from spec.model.lora"
_PARSING = "the orchestrator's codec renders and parses messages (spec.model.renderer)"
_NODES = "an engine is one pod; set spec.inference.replicas and gpusPerReplica"


def _engine() -> Iterator[Key]:
    how = "GPUs of one engine"
    yield made(f"{ENGINE}.tensor_parallel_size", "spec.inference.tensorParallel, gpusPerReplica", how, 2)
    yield made(f"{ENGINE}.data_parallel_size", "spec.inference.replicas", "an engine for each", 2)
    yield made(f"{ENGINE}.max_model_len", "spec.model.maxModelLen", "where it is below seq_len", 1024)
    yield made(f"{ENGINE}.dtype", "spec.model.dtype", "float32 or bfloat16; auto: the default", "float32")
    for key in ("enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank", "lora_target_modules"):
        yield none(f"{ENGINE}.{key}", _ADAPTERS, 1)
    yield none(f"{ENGINE}.enable_return_routed_experts", "follows from spec.trainer.routerReplay", True)
    experts = "enable_expert_parallel all2all_backend enable_eplb eplb_config enable_dbo"
    for key in experts.split():
        yield none(f"{ENGINE}.{key}", _EXPERTS, True)
    for key in ("tool_call_parser", "reasoning_parser", "chat_template", "enable_auto_tool_choice"):
        yield none(f"{ENGINE}.{key}", _PARSING, "hermes")
    yield none(f"{ENGINE}.trust_remote_code", "code from model repositories is never run", True)
    yield none(f"{ENGINE}.vlm.*", "vision models are not supported", {"x": 1})
    processes = "api_server_count data_parallel_size_local data_parallel_rpc_port headless nnodes"
    for key in processes.split():
        yield none(f"{ENGINE}.{key}", _NODES, 1)
    yield made(f"{ENGINE}.*", "spec.inference.extraArgs", "`--name=value`, unless EchoRL sets it", {"max_num_seqs": 64})


ROWS: tuple[Key, ...] = (
    *_engine(),
    none("inference.weight_broadcast.*", "follows from mode and roles", {"port": 1}),
    none("inference.server.*", _ADDRESSES, {"port": 8000}),
    none("inference.deployment.*", _NODES, {"num_nodes": 2}),
    none("inference.router.*", "the orchestrator spreads episodes over engines", {"port": 1}),
    none("inference.kv_cache_offload.*", "offloading to host memory is not supported", {"cpu_bytes": 1}),
    none("inference.use_deep_gemm", "set it by env in spec.inference.template", True),
    none(
        "inference.enable_fp32_lm_head", "engines compute logits as vLLM does; the logprob gap is measured", True, "on"
    ),
    none("inference.enable_fp32_router_logits", _EXPERTS, True),
    none("inference.env_vars.*", "set env in spec.inference.template; values from a Secret", {"A": "b"}),
    none("inference.slurm.*", "EchoRL's operator or `echorl run` starts the roles", {"partition": "gpu"}),
    none("inference.log.*", "roles write structured logs at one level", {"level": "info"}),
    none("inference.output_dir", "a run has one directory", "outputs"),
    none("inference.dry_run", "`echorl validate` and `echorl render` check without starting", True),
    none("inference.experimental.*", "an experiment of prime-rl's", {"x": 1}),
)
