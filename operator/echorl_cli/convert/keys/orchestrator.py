"""Keys of ``[orchestrator]`` that are about the whole run."""

from collections.abc import Iterator

from echorl_cli.convert.keys.row import IMPORT, Key, made, none

_NO_ALGORITHM = "of an algorithm that the manifest does not have"
_BASELINE = "a group's baseline is its plain mean"


def _model() -> Iterator[Key]:
    base = "orchestrator.model"
    yield none(f"{base}.trust_remote_code", "code from model repositories is never run", True)
    yield none(f"{base}.lora.name", "EchoRL names adapters itself", "a")
    yield none(f"{base}.client.*", "EchoRL starts and finds its engines itself", {"base_url": "http://engine/v1"})
    yield made("orchestrator.renderer.name", "spec.model.renderer", "null becomes engine", "qwen3")
    yield none("orchestrator.renderer.*", "the codec follows the model's template", {"enable_thinking": True})


def _shaping(base: str, to: str) -> Iterator[Key]:
    """Keys of a penalty for length, of the generations with a bonus for short episodes and of the linear one."""
    shaping = f"{to}.advantage.lengthShaping"
    yield made(base, f"{shaping}.by", "the type alone, as text", "turns")
    yield made(f"{base}.type", f"{shaping}.by", "tokens, turns; linear has no counterpart", "tokens")
    yield made(f"{base}.completion_weight", f"{shaping}.completionWeight", "of tokens", 0.5)
    how = "of tokens; every token that the environment wrote counts"
    yield made(f"{base}.tool_response_weight", f"{shaping}.environmentWeight", how, 0.5)
    yield none(f"{base}.*", "the manifest has no linear penalty", {"num_turns_weight": 0.1})


def algorithm(base: str, to: str) -> Iterator[Key]:
    """Keys of an algorithm and of an advantage, of the run or of one environment."""
    algo = f"{base}.algo"
    how = "grpo, max_rl, rae; echo adds an ECHO block; opd and sft are modes"
    yield made(f"{algo}.type", to, how, "max_rl")
    yield made(f"{algo}.decay", f"{to}.advantage.momentum", "of rae; its baselines are per member", 0.9, 0.95)
    yield made(
        f"{algo}.roles.*", "spec.environments.train[].echo", "of echo; default tool at 0.1", {"tool": {"alpha": 0.2}}
    )
    yield made(
        f"{algo}.filter.*",
        "spec.environments.train[].echo.filter",
        "of echo; the function is called in another way",
        {"import_path": "ours.keep"},
    )
    yield made(f"{algo}.teacher.name", f"{to}.teacher.model", "of opd and sft", "big")
    yield made(f"{algo}.teacher.base_url", f"{to}.teacher.url", "of opd and sft; one URL", "http://teacher/v1")
    how = "put the key into a Secret and name that in spec.algorithm.teacher.secretName"
    yield none(f"{algo}.teacher.api_key_var", how, "TEACHER_API_KEY")
    yield none(f"{algo}.teacher.*", "the manifest names url, model and Secret of a teacher", {"timeout": 60})
    yield made(f"{algo}.sampling.source", to, "policy: nothing; an endpoint: the teacher", "policy")
    yield from _shaping(f"{algo}.length_penalty", to)
    yield none(f"{algo}.length_weighted_baseline", _BASELINE, True)
    foreign = "failsafe_min_members loss_aggregation continue_prob episode_agents demo_key template advantage"
    for key in foreign.split():
        yield none(f"{algo}.{key}", _NO_ALGORITHM, 1)
    yield none(f"{algo}.renderer.*", _NO_ALGORITHM, {"name": "qwen3"})
    advantage = f"{base}.advantage"
    how = "default: groupMean; custom; ema_per_member: rae, update first; null: none"
    yield made(f"{advantage}.type", f"{to}.advantage.type", how, "default")
    yield made(f"{advantage}.import_path", f"{to}.advantage.import", IMPORT, "a.b")
    yield made(f"{advantage}.kwargs.*", f"{to}.advantage.kwargs", "without secrets", {"a": 1})
    how = "of ema_per_member; its baselines are per task"
    yield made(f"{advantage}.momentum", f"{to}.advantage.momentum", how, 0.8)
    yield from _shaping(f"{advantage}.length_penalty", to)
    for key in ("length_weighted_mean", "length_weighted_baseline", "neg_clipped"):
        yield none(f"{advantage}.{key}", _BASELINE, True)
    for key in ("length_shaping", "length_shaping_alpha"):
        yield none(f"{advantage}.{key}.*", "of a shaping that the manifest does not have", {"type": "tokens"})


def _batches() -> Iterator[Key]:
    yield made("orchestrator.batch_size", "spec.algorithm.batchSize", "unless token_batch_size is there", 64, 128)
    yield made("orchestrator.token_batch_size", "spec.algorithm.tokenBatchSize", "instead of batch_size", 65536)
    how = "else what all environments have"
    yield made("orchestrator.group_size", "spec.algorithm.groupSize", how, 8, 1)
    yield made(
        "orchestrator.oversampling_factor",
        "spec.algorithm.oversampling",
        "from 1; times batch_size it is maxConcurrent",
        1.5,
    )
    how = "maxConcurrent as it is; oversampling where sampling has to run further ahead for that"
    both = "spec.environments.*[].maxConcurrent, spec.algorithm.oversampling"
    yield made("orchestrator.max_inflight_episodes", both, how, 256, 1024)
    yield made("orchestrator.max_concurrent", "spec.environments.*[].maxConcurrent", "for every environment", 64)
    yield made("orchestrator.max_off_policy_steps", "spec.algorithm.maxStaleness", "also of time in the queue", 4, 8)
    yield made("orchestrator.seq_len", "spec.model.maxModelLen", "less where the engines' limit is", 4096)
    yield made("orchestrator.seed", "spec.seed", "null: the default", 7)
    for slot in ("pre_batch_filters", "post_batch_filters"):
        base, stage = f"orchestrator.{slot}[]", "group" if slot.startswith("pre") else "batch"
        example = "zero_advantage"
        yield made(f"{base}.type", "spec.algorithm.filters[]", f"stage {stage}", example)
        yield made(f"{base}.enforce", "spec.algorithm.filters[].enforce", "default: only zero_advantage", True)
        for key in ("token_id_threshold", "logprob_offset", "window", "prob_threshold"):
            yield none(f"{base}.{key}", "the manifest has no thresholds of filters", 1)
        yield made(f"orchestrator.{slot}", "spec.algorithm.filters", f"stage {stage}", [])


def _rest() -> Iterator[Key]:
    ahead = "spec.algorithm.maxStaleness alone bounds how far behind a sample may be"
    yield none("orchestrator.max_async_level", f"{ahead}, and sampling runs ahead as far as that", 1, 1)
    for key in ("strict_async_level", "async_level"):
        yield none(f"orchestrator.{key}", ahead, 1)
    yield made("orchestrator.buffer.env_ratios", "spec.environments.train[].weight", "one for each environment", [1.0])
    yield made("orchestrator.buffer.seed", "spec.seed", "where the orchestrator has none", 7)
    curriculum, how = "spec.environments.train[].curriculum", "such tasks are passed over until a group says otherwise"
    yield made("orchestrator.buffer.easy_threshold", f"{curriculum}.easyFrom", how, 0.9)
    yield made("orchestrator.buffer.hard_threshold", f"{curriculum}.hardTo", how, 0.1)
    filtered = "true: difficulty, stage group"
    yield made("orchestrator.buffer.online_difficulty_filtering", "spec.algorithm.filters", filtered, True)
    for key in ("easy_fraction", "hard_fraction", "difficulty_fraction"):
        yield none(f"orchestrator.buffer.{key}", "a task's last group decides its pool, also after a resume", 0.5)
    yield none("orchestrator.buffer.hash_keys", "tasks are told apart by their place in the data", ["prompt"])
    yield none("orchestrator.buffer.from_scratch", "resume.policy says it", True)
    yield none("orchestrator.buffer.skip_verification", "environments always score", True)
    yield none("orchestrator.verification.*", "environments always score", {"enabled": True})
    yield made("orchestrator.multi_agent.drop_judge", "spec.environments.train[].dropMembers", "true: [judge]", True)
    yield none("orchestrator.multi_agent.*", "set members of an environment", {"fixed": {"judge": {"model": "m"}}})
    yield none("orchestrator.optim.*", "the trainer has the optimizer", {"lr": 1e-4})
    yield none("orchestrator.rollout_transport.*", "batches travel over HTTP", {"type": "zmq"})
    yield none("orchestrator.constant_trainer_batch_size", "a batch is whole, but for filtered episodes", True)
    yield none("orchestrator.num_train_workers", "follows from the trainer's ranks", 2)
    yield none("orchestrator.pad_to_multiple_of", "follows from the trainer's ranks", 2)
    yield none("orchestrator.env_server_base_port", "EchoRL chooses addresses itself", 5000)
    for key in ("initial_inflight", "min_inflight"):
        yield none(
            f"orchestrator.concurrency.{key}", "maxConcurrent and algorithm.oversampling bound what is in flight", 64
        )
    yield none("orchestrator.tasks_per_minute", "maxConcurrent of an environment bounds its load", 60)
    yield none("orchestrator.pool_size", "the codec works in the orchestrator's process", 4)
    yield none("orchestrator.heartbeat.*", "alert on the metrics of the run instead", {"url": "https://x"})
    yield none("orchestrator.val.*", "an environment under environments.eval with holdout", {"interval": 10})
    yield none("orchestrator.experimental.*", "an experiment of prime-rl's", {"x": 1})
    yield none("orchestrator.bench", "speed is measured by the programs in benchmarks/", True)
    for key in ("collect_inference_metrics", "inference_metrics_roles"):
        yield none(f"orchestrator.{key}", "the engines' metrics are always collected", True)
    yield none("orchestrator.env_install_prerelease", "environments come with the orchestrator's image", True)
    for key in ("trajectory_strategy", "use_token_client", "use_renderer"):
        yield none(f"orchestrator.{key}", "tokens are captured as they were sampled; branches become samples", True)
    masks = "mask_env_responses mask_truncated_completions zero_truncated_completions"
    for key in masks.split():
        yield none(f"orchestrator.{key}", "only sampled tokens train, unless an echo block says otherwise", True)
    for key in ("workers_per_env", "max_env_worker_restarts", "reload_weights_on_start"):
        yield none(f"orchestrator.{key}", "chosen by EchoRL; workers is a field of an environment", 1)


ROWS: tuple[Key, ...] = (*_model(), *algorithm("orchestrator", "spec.algorithm"), *_batches(), *_rest())
