"""Keys that several files of a run share, and those of its launcher."""

from collections.abc import Iterator
from itertools import chain

from echorl_cli.convert.keys.row import Key, made, none, same

_LAUNCHER = "EchoRL's operator or `echorl run` starts the roles"
_ADDRESSES = "EchoRL chooses addresses itself"
_LOGS = "roles write structured logs at one level; their folder is fixed"
_WEIGHTS = "each checkpoint holds the weights in Hugging Face's format"
_TEACHER = "EchoRL starts no teacher; spec.algorithm.teacher.url names one"
_VISION = "vision models are not supported"
_FILES = "a run has one directory, given by --out or by the run's volume (spec.storage)"


def _checkpoint(base: str) -> Iterator[Key]:
    ckpt = f"{base}ckpt"
    yield none(f"{base}resume.dir", "a run resumes from its own checkpoints only", "other/checkpoints/step_5")
    yield none(f"{ckpt}.output_dir", _FILES, "/ckpt")
    reason = (
        "checkpoints always hold weights, optimizer, schedule and the orchestrator's state, and all of it is loaded"
    )
    for key in ("skip_progress", "skip_scheduler", "skip_dataloader", "skip_optimizer", "skip_buffer", "weights_only"):
        yield none(f"{ckpt}.{key}", reason, True)
    yield none(f"{ckpt}.skip_gather_master_weights", _WEIGHTS, True)
    yield none(f"{ckpt}.weights.*", _WEIGHTS, {"save_sharded": True})
    yield none(f"{ckpt}.wait_for_weights_timeout", "a checkpoint counts only once it is committed as a whole", 60)
    yield none(f"{ckpt}.buffer_path", "a checkpoint holds the position in the tasks", "b")


def _monitors(base: str) -> Iterator[Key]:
    wandb = f"{base}monitors.wandb"
    yield made(f"{wandb}.name", "metadata.name", "as far as a run's name may hold it; the first of the roles", "my-run")
    for key in ("group", "tags"):
        yield none(f"{wandb}.{key}", "the run's name and its project are what it is found by", "ours")
    yield none(f"{wandb}.id", "the run's uid is the id, so that restarts go on with the same run", "ours")
    yield none(f"{wandb}.log_extras.*", "samples and distributions are in the episode records", {"interval": 5})
    yield none(f"{base}monitors.file.*", "metrics are always written to records/ of the run", {"path": "m.jsonl"})
    yield none(f"{base}monitors.prime.*", "a hosted service of prime-rl's makers", {"name": "x"})


def _shared(base: str) -> Iterator[Key]:
    yield none(f"{base}output_dir", _FILES, "outputs/x")
    yield none(f"{base}log.*", _LOGS, {"level": "debug"})
    yield none(f"{base}env_vars.*", "set env in spec.<role>.template; values from a Secret", {"A": "b"})
    yield none(f"{base}tokenizer.*", "the tokenizer is the model's own", {"name": "other/tokenizer"})
    yield none(f"{base}model.vlm.*", _VISION, {"vision_encoder_attr": "model.visual"})
    why = "follows from mode and roles; weights are sent as the engines hold them, and every wait has a deadline"
    yield none(f"{base}weight_broadcast.*", why, {"port": 29501})
    yield from _checkpoint(base)
    yield from _monitors(base)


def _deployment() -> Iterator[Key]:
    yield made("deployment.type", "spec.trainer, spec.inference", "how GPUs are counted", "single_node")
    yield made("deployment.gpus_per_node", "spec.trainer.gpusPerReplica", "of multi_node", 8)
    yield made("deployment.num_train_gpus", "spec.trainer.gpusPerReplica", "one trainer pod", 2)
    how = "GPUs of all engines, divided by the tensor parallel size"
    yield made("deployment.num_infer_gpus", "spec.inference.replicas", how, 2)
    yield made("deployment.num_train_nodes", "spec.trainer.replicas", "one pod a node", 2)
    nodes = f"{how}; 1 where a multi_node file says nothing"
    yield made("deployment.num_infer_nodes", "spec.inference.replicas", nodes, 1)
    yield made("deployment.num_infer_replicas", "spec.inference.replicas", how, 2)
    how = "training nodes divided by it"
    yield made("deployment.nodes_per_fsdp_group", "spec.trainer.parallel.replicate", how, 1)
    for key in ("num_teacher_gpus", "num_teacher_nodes"):
        yield none(f"deployment.{key}", _TEACHER, 1)
    yield none(
        "deployment.orchestrator_on_inference", "set nodeSelector or affinity in spec.orchestrator.template", True
    )


ROWS: tuple[Key, ...] = (
    *chain.from_iterable(_shared(base) for base in ("", "trainer.", "orchestrator.")),
    same("max_steps", "spec.maxSteps", 40),
    same("ckpt.interval", "spec.checkpoint.interval", 10),
    same("ckpt.keep_last", "spec.checkpoint.keepLast", 3),
    same("ckpt.keep_interval", "spec.checkpoint.keepEvery", 50),
    made("ckpt.resume_step", "spec.resume", "-1: policy Auto; a step: policy FromStep", 20),
    made("monitors.wandb.project", "spec.monitors.wandb.project", "with a [wandb] table alone", "ours", "prime-rl"),
    made("monitors.wandb.entity", "spec.monitors.wandb.entity", "with a [wandb] table alone", "team"),
    made("monitors.wandb.offline", "spec.monitors.wandb.mode", "true: offline", True),
    made("weight_broadcast.type", "spec.weightTransfer.mode", "filesystem: disk; nccl: nccl", "filesystem"),
    made("model.name", "spec.model.name", "one value for all roles", "Qwen/Qwen3-4B", "Qwen/Qwen3-0.6B"),
    none("model.trust_remote_code", "code from model repositories is never run", True),
    made("seq_len", "spec.model.maxModelLen, spec.trainer.seqLen", "where a role has none of its own", 4096, 2048),
    made("run.name", "metadata.name", "as far as a run's name may hold it", "my-run"),
    none("run.dir", _FILES, "x"),
    *_deployment(),
    none("slurm.*", _LAUNCHER + "; requests and placement go to spec.<role>.template", {"partition": "gpu"}),
    none("clean_output_dir", "to start afresh: resume.policy Never with onExisting Archive", True),
    none("clean", "to start afresh: resume.policy Never with onExisting Archive", True),
    none("env_server_base_port", _ADDRESSES, 5000),
    none("bench", "speed is measured by the programs in benchmarks/", True),
    none("dry_run", "`echorl validate` and `echorl render` check without starting", True),
    none("dump_config", "`echorl render` prints the configuration of each role", "d"),
    none("teacher_gpu_ids", _TEACHER, [1]),
    none("teacher_inference.*", _TEACHER, {"server": {"port": 1}}),
    none("rollout_transport.*", "batches travel over HTTP and are kept on the run's volume", {"type": "zmq"}),
    none("dashboard", "figures of a run: `echorl report`, W&B, TensorBoard, Prometheus", True),
    none("experimental.*", "an experiment of prime-rl's", {"x": 1}),
)
