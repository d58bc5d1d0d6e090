"""Every key that prime-rl has spelled in more than one way, with the spelling that all other code reads."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from echorl_cli.convert.tree import MISSING

SHARED: dict[str, Any] = {
    "max_steps": 40,
    "weight_broadcast.type": "filesystem",
    "ckpt.interval": 10,
    "ckpt.keep_last": 3,
    "ckpt.keep_interval": 50,
    "ckpt.resume_step": 20,
    "monitors.wandb.project": "ours",
    "monitors.wandb.entity": "team",
    "monitors.wandb.offline": True,
    "model.name": "Qwen/Qwen3-4B",
}
"""Keys of the run, with a value, that may stand with a role as well and are then one."""
ENVIRONMENTS = ("orchestrator.train.source[]", "orchestrator.eval.source[]")


@dataclass(frozen=True)
class Rename:
    """Two spellings of one key."""

    other: str
    """An earlier spelling, or a longer one of a later generation."""
    read_as: str
    """The spelling that the tables of keys use."""
    value: Callable[[Any], Any] | None = None
    """From the other spelling's value; MISSING: this value means something else and stays. None: as it is."""
    example: Any = 1
    """A value of the other spelling, for the tests."""
    earlier: bool = False
    """Whether the generations before the loss of today spelled it so."""


def _pool(workers: Any) -> Any:
    return {"type": "elastic"} if workers == "auto" else {"type": "static", "num_workers": workers}


def _rollout_timeout(value: Any) -> Any:
    return value if isinstance(value, dict) else {"rollout": value}


def _resume_step(block: Any) -> Any:
    return -1 if block == {} else MISSING


def _inverse(value: Any) -> Any:
    return (not value) if isinstance(value, bool) else value


def _is_on(value: Any) -> Any:
    return bool(value.get("enabled", True)) if isinstance(value, dict) else value


def _count(value: Any) -> Any:
    return len(value) if isinstance(value, list) else value


_MODES = {"rl": "grpo"}


def _algorithm(mode: Any) -> Any:
    return _MODES.get(mode, mode) if isinstance(mode, str) else mode


def _list_of_one(value: Any) -> Any:
    return [value]


def _tool_outputs(block: Any) -> Any:
    """The branch that trained on tool outputs had ``sft`` where ``echo`` is now."""
    if not isinstance(block, dict) or block.get("on_tool_outputs") is not True:
        return MISSING
    return {"tool": {key: value for key, value in block.items() if key != "on_tool_outputs"}}


def _data_source(name: Any) -> Any:
    return [{"dataset": name}]


def _table_only(value: Any) -> Any:
    return value if isinstance(value, dict) else MISSING


def _environment(base: str) -> Iterator[Rename]:
    moved = {
        "rollouts_per_example": "group_size",
        "sampling.max_tokens": "sampling.max_completion_tokens",
        "id": "legacy.id",
        "args": "legacy.args",
        "extra_env_kwargs": "legacy.extra_env_kwargs",
        "taskset": "env.taskset",
        "harness.runtime": "env.agent.runtime",
        "harness": "env.agent.harness",
        "max_turns": "env.agent.max_turns",
        "max_input_tokens": "env.agent.max_input_tokens",
        "max_output_tokens": "env.agent.max_output_tokens",
        "max_total_tokens": "env.agent.max_total_tokens",
        "address": "serve.address",
        "pool": "serve.pool",
    }
    examples: dict[str, Any] = {
        "id": "reverse-text",
        "args": {"difficulty": "hard"},
        "extra_env_kwargs": {"score": True},
        "taskset": {"id": "sort"},
        "harness": {"id": "null"},
        "harness.runtime": {"type": "subprocess"},
        "address": "tcp://host:5000",
        "pool": {"type": "static", "num_workers": 2},
    }
    for other, read_as in moved.items():
        yield Rename(f"{base}.{other}", f"{base}.{read_as}", example=examples.get(other, 4))
    yield Rename(f"{base}.timeout", f"{base}.env.agent.timeout", _rollout_timeout, 90)
    yield Rename(f"{base}.num_workers", f"{base}.serve.pool", _pool, 3)


def _algorithms(base: str) -> Iterator[Rename]:
    teacher = f"{base}.algo.teacher"
    endpoint = {"name": "big", "base_url": "http://teacher/v1"}
    yield Rename(f"{base}.algo.sampling.source", teacher, _table_only, endpoint)
    if base == "orchestrator":
        yield Rename(f"{base}.reference_model", f"{base}.teacher", example={"model": {"name": "big"}})
        yield Rename(f"{base}.teacher_model", f"{base}.teacher", example={"model": {"name": "big"}})
        yield Rename(f"{base}.teacher.model", teacher, example={"name": "big"})
        yield Rename(f"{base}.teacher.client", teacher, example={"base_url": "http://teacher/v1"})
        yield Rename(f"{base}.training_mode", f"{base}.algo.type", _algorithm, "rl")


def _monitors() -> Iterator[Rename]:
    for base in ("", "trainer.", "orchestrator."):
        yield Rename(f"{base}wandb", f"{base}monitors.wandb", example={"project": "ours"})
    yield Rename("orchestrator.prime_monitor", "orchestrator.monitors.prime", example={"name": "ours"})


def _checkpoints() -> Iterator[Rename]:
    for base in ("", "trainer.", "orchestrator."):
        yield Rename(f"{base}ckpt.keep", f"{base}ckpt.keep_last", example=3, earlier=True)
        yield Rename(f"{base}resume.step", f"{base}ckpt.resume_step", example=20)
        yield Rename(f"{base}resume", f"{base}ckpt.resume_step", _resume_step, {})


_ENGINE_ARGUMENTS = (
    "enable_lora",
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
    "lora_target_modules",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "quantization",
    "api_server_count",
    "data_parallel_size_local",
    "data_parallel_rpc_port",
    "seed",
    "enable_expert_parallel",
    "all2all_backend",
    "enable_eplb",
    "enable_dbo",
    "enable_return_routed_experts",
    "calculate_kv_scales",
)


def _engines() -> Iterator[Rename]:
    yield Rename("inference.model.name", "model.name", example="Qwen/Qwen3-4B")
    yield Rename("inference.model", "inference.vllm", example={"max_model_len": 8192})
    yield Rename("inference.parallel.tp", "inference.vllm.tensor_parallel_size", example=2)
    yield Rename("inference.parallel.dp", "inference.vllm.data_parallel_size", example=2)
    for key in _ENGINE_ARGUMENTS:
        yield Rename(f"inference.{key}", f"inference.vllm.{key}")
    yield Rename("inference.vllm_extra", "inference.vllm", example={"swap_space": 4})


def _trainer() -> Iterator[Rename]:
    yield Rename("trainer.model.experimental.lora", "trainer.model.lora", example={"rank": 8}, earlier=True)
    chunk = "trainer.model.fused_lm_head_token_chunk_size"
    yield Rename("trainer.model.fused_lm_head_chunk_size", chunk, example=2048)
    yield Rename("trainer.experimental.token_export", "trainer.enable_token_export", _is_on, {"enabled": True})
    for base in ("trainer", "orchestrator"):
        yield Rename(f"{base}.transport", f"{base}.rollout_transport", example={"type": "zmq"})


def _orchestrator() -> Iterator[Rename]:
    source = [{"id": "reverse-text"}]
    yield Rename("orchestrator.environment", "orchestrator.env", _list_of_one, source[0], earlier=True)
    yield Rename("orchestrator.env", "orchestrator.train.env", example=source, earlier=True)
    yield Rename("orchestrator.train.env", "orchestrator.train.source", example=source)
    yield Rename("orchestrator.eval.env", "orchestrator.eval.source", example=source)
    yield Rename("orchestrator.sampling", "orchestrator.train.sampling", example={"temperature": 0.7}, earlier=True)
    for base in ("orchestrator.train", "orchestrator.eval"):
        tokens = f"{base}.sampling.max_completion_tokens"
        yield Rename(f"{base}.sampling.max_tokens", tokens, example=512)
    for base in ("orchestrator", "orchestrator.eval"):
        yield Rename(f"{base}.rollouts_per_example", f"{base}.group_size", example=4, earlier=True)
    inflight = "orchestrator.max_inflight_episodes"
    yield Rename("orchestrator.max_inflight_rollouts", inflight, example=512)
    yield Rename("orchestrator.concurrency.max_inflight", inflight, example=512)
    yield Rename("orchestrator.filters", "orchestrator.post_batch_filters", example=[{"type": "zero_advantage"}])
    outputs = {"on_tool_outputs": True, "alpha": 0.5}
    yield Rename(f"{ENVIRONMENTS[0]}.sft", f"{ENVIRONMENTS[0]}.echo", _tool_outputs, outputs)
    yield Rename("orchestrator.env_mix", "orchestrator.buffer.env_ratios", example=[1.0])
    yield Rename("orchestrator.eval.eval_base_model", "orchestrator.eval.skip_first_step", _inverse, False)
    skip = "orchestrator.eval.skip_eval_on_resume"
    yield Rename("orchestrator.eval.skip_eval_on_restart", skip, example=True)
    yield Rename("orchestrator.student.model", "orchestrator.model", example={"name": "Qwen/Qwen3-4B"})
    yield Rename("orchestrator.student.client", "orchestrator.model.client", example={"base_url": "http://engine/v1"})
    yield Rename("orchestrator.student.renderer", "orchestrator.renderer", example={"name": "qwen3"})
    yield Rename("orchestrator.client", "orchestrator.model.client", example={"base_url": "http://engine/v1"})


def _run() -> Iterator[Rename]:
    yield Rename("trainer_gpu_ids", "deployment.num_train_gpus", _count, [0, 1], earlier=True)
    yield Rename("inference_gpu_ids", "deployment.num_infer_gpus", _count, [2, 3], earlier=True)


def _roles() -> Iterator[Rename]:
    for key, example in SHARED.items():
        for role in ("trainer", "orchestrator"):
            yield Rename(f"{role}.{key}", key, example=example)
    yield Rename("inference.weight_broadcast.type", "weight_broadcast.type", example="filesystem")
    yield Rename("inference.vllm.model", "model.name", example="Qwen/Qwen3-4B")
    for key in ("rank", "alpha"):
        yield Rename(f"orchestrator.model.lora.{key}", f"trainer.model.lora.{key}", example=8)


def _supervised() -> Iterator[Rename]:
    """A file of supervised fine-tuning has the trainer's keys at its top."""
    roles = {"optim": {"lr": 2e-6}, "scheduler": {"type": "cosine"}, "model": {"attn": "sdpa"}}
    keys = "matmul_precision gc memory_profiler_path trace_path dist_timeout_seconds heartbeat metrics_server"
    for key, example in {**roles, **dict.fromkeys(keys.split(), 1)}.items():
        yield Rename(key, f"trainer.{key}", example=example)
    yield Rename("eval.env", "orchestrator.eval.source", example=[{"id": "reverse-text"}])
    yield Rename("eval", "orchestrator.eval", example={"interval": 5})
    yield Rename("renderer", "orchestrator.renderer", example={"name": "qwen3"})
    yield Rename("deployment.num_gpus", "deployment.num_train_gpus", example=2)
    yield Rename("deployment.num_nodes", "deployment.num_train_nodes", example=2)
    yield Rename("deployment.num_eval_gpus", "deployment.num_infer_gpus", example=2)
    yield Rename("deployment.num_eval_nodes", "deployment.num_infer_nodes", example=2)
    yield Rename("data.name", "data.source", _data_source, "ours/conversations")


SUPERVISED: tuple[Rename, ...] = tuple(_supervised())
"""Those of files without an orchestrator, which come first."""
RENAMES: tuple[Rename, ...] = (
    *_run(),
    *_orchestrator(),
    *(rename for base in ENVIRONMENTS for rename in _environment(base)),
    *(rename for base in ("orchestrator", ENVIRONMENTS[0]) for rename in _algorithms(base)),
    *_monitors(),
    *_checkpoints(),
    *_trainer(),
    *_engines(),
    *_roles(),
)
"""All renames, in the order in which they are carried out: a key may move twice."""
