"""Spec and placement to role configs: one pure function, covered by golden files."""

from echorl_core import config, names
from echorl_manifest.compile.algorithms import (
    advantage_config,
    filter_configs,
    loss_config,
    losses_by_environment,
    sft_config,
    teacher_config,
)
from echorl_manifest.compile.environments import environment_config, eval_config
from echorl_manifest.compile.failure_policy import restart_policy, restart_rules
from echorl_manifest.compile.placement import Placement
from echorl_manifest.models.base import duration_seconds, quantity_number
from echorl_manifest.models.model import Lora
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.rules.algorithm import batch_size, group_size
from echorl_manifest.rules.model import DEFAULT_MAX_MODEL_LEN
from echorl_manifest.rules.modes import samples

LONGEST_REPLACEMENT_S = 600.0
"""For which a gang waits for a pod in the place of a lost one."""


def num_ranks(spec: EchoRLRunSpec) -> int:
    """Data-parallel ranks of the trainer gang."""
    return spec.trainer.replicas * max(1, spec.trainer.gpus_per_replica)


def max_model_len(spec: EchoRLRunSpec, placement: Placement) -> int:
    """Longest sequence: as set, else the default where model and micro-batch are long enough for it."""
    if spec.model.max_model_len is not None:
        return spec.model.max_model_len
    limits = (DEFAULT_MAX_MODEL_LEN, placement.model_max_len, spec.trainer.seq_len)
    return min(limit for limit in limits if limit is not None)


def _lora(lora: Lora) -> config.LoraConfig:
    return config.LoraConfig(rank=lora.rank, alpha=lora.alpha, target_modules=list(lora.target_modules))


def _model(spec: EchoRLRunSpec, placement: Placement) -> config.ModelConfig:
    return config.ModelConfig(
        path=placement.model_path,
        dtype=spec.model.dtype,
        max_model_len=max_model_len(spec, placement),
        renderer=placement.renderer,
        lora=None if spec.model.lora is None else _lora(spec.model.lora),
    )


def _batch(spec: EchoRLRunSpec, placement: Placement) -> config.BatchConfig:
    algorithm = spec.algorithm
    return config.BatchConfig(
        mode=algorithm.mode,
        sft=sft_config(algorithm.sft),
        group_size=group_size(algorithm),
        batch_size=batch_size(algorithm),
        token_batch_size=algorithm.token_batch_size,
        max_staleness=algorithm.max_staleness,
        oversampling=algorithm.oversampling,
        max_branches=algorithm.max_branches,
        aggregation=algorithm.loss.aggregation,
        reward_per_branch=algorithm.reward_per_branch,
        rl_weight=algorithm.rl_weight,
        echo_normalizer=algorithm.echo.normalizer,
        echo_warmup_steps=algorithm.echo.warmup_steps,
        advantage=advantage_config(algorithm.advantage),
        filters=filter_configs(algorithm),
        seq_len=spec.trainer.seq_len or max_model_len(spec, placement),
        num_ranks=num_ranks(spec),
        context=spec.trainer.parallel.context,
    )


def _optimizer(spec: EchoRLRunSpec) -> config.OptimizerConfig:
    return config.OptimizerConfig(**spec.trainer.optimizer.model_dump())


def _monitors(spec: EchoRLRunSpec) -> config.MonitorsConfig:
    wandb, project = spec.monitors.wandb, spec.monitors.wandb.project
    return config.MonitorsConfig(
        wandb=None
        if project is None
        else config.WandbConfig(project=project, entity=wandb.entity, base_url=wandb.base_url, mode=wandb.mode),
        tensorboard=spec.monitors.tensorboard.enabled,
    )


def _sandboxes(spec: EchoRLRunSpec, placement: Placement) -> config.SandboxesConfig | None:
    sandboxes = spec.sandboxes
    if sandboxes is None:
        return None
    resources = sandboxes.resources
    return config.SandboxesConfig(
        # Who has a broker's pods made is the broker's affair.
        provider="process" if sandboxes.provider == "process" else "pod",
        broker_url=None if sandboxes.provider == "process" else placement.broker_url,
        cpu=resources.cpu,
        memory_bytes=int(quantity_number(resources.memory)),
        disk_bytes=int(quantity_number(resources.disk)),
        processes=resources.processes,
        concurrency=sandboxes.concurrency,
        ttl_s=duration_seconds(sandboxes.ttl),
    )


def _orchestrator(spec: EchoRLRunSpec, placement: Placement) -> config.OrchestratorConfig:
    checkpoint = spec.checkpoint
    addresses = [f"{engine.host}:{engine.port}" for engine in placement.engines]
    return config.OrchestratorConfig(
        run_dir=placement.run_dir,
        host=placement.orchestrator_host,
        port=placement.orchestrator_port,
        model=_model(spec, placement),
        seed=spec.seed,
        max_steps=spec.max_steps,
        batch=_batch(spec, placement),
        train=[environment_config(environment, placement) for environment in spec.environments.train],
        evals=[eval_config(environment, placement) for environment in spec.environments.eval],
        engines=config.EngineDiscovery(
            names=(list(placement.engine_names) or addresses) if samples(spec) else [],
            gpus=max(1, spec.inference.gpus_per_replica),
            extra_headers={header.name: header.value for header in spec.inference.extra_headers},
        ),
        teacher=teacher_config(spec.algorithm),
        weight_mode=spec.weight_transfer.mode,
        router_replay=spec.trainer.router_replay,
        checkpoint=config.CheckpointConfig(
            interval=checkpoint.interval, keep_last=checkpoint.keep_last, keep_every=checkpoint.keep_every
        ),
        record=spec.record.enabled,
        record_episodes=spec.record.episodes,
        turn_journal=spec.orchestrator.turn_journal,
        monitors=_monitors(spec),
        sandboxes=_sandboxes(spec, placement),
        python_path=list(placement.python_path),
    )


def _trainer(spec: EchoRLRunSpec, placement: Placement) -> config.TrainerConfig:
    trainer = spec.trainer
    on_gpus = trainer.gpus_per_replica > 0
    return config.TrainerConfig(
        run_dir=placement.run_dir,
        orchestrator_url=placement.orchestrator_url,
        model=_model(spec, placement),
        seed=spec.seed,
        max_steps=spec.max_steps,
        seq_len=trainer.seq_len or max_model_len(spec, placement),
        mode=spec.algorithm.mode,
        loss=loss_config(spec.algorithm.loss, spec.algorithm.mode),
        losses=losses_by_environment(spec),
        python_path=list(placement.python_path),
        optimizer=_optimizer(spec),
        compile=on_gpus and trainer.parallel.expert == 1 if trainer.compile is None else trainer.compile,
        activation_checkpointing=trainer.activation_checkpointing or ("selective" if on_gpus else "none"),
        gradient_accumulation=trainer.gradient_accumulation,
        replicate=trainer.parallel.replicate,
        context=trainer.parallel.context,
        expert=trainer.parallel.expert,
        router_replay=trainer.router_replay,
        weight_mode=spec.weight_transfer.mode,
        engines_on_gpus=spec.weight_transfer.mode == "auto" and spec.inference.gpus_per_replica > 0,
        engine_quantization=spec.inference.quantization,
        weight_delta=spec.weight_transfer.delta,
        publish_host=placement.publish_host,
        advertise_host=placement.advertise_host,
        metrics_port=placement.metrics_port,
        step_timeout_s=duration_seconds(spec.stall_policy.no_step_for),
        async_save=spec.checkpoint.async_save,
        memory=_memory(spec),
        weights_only_every=spec.checkpoint.weights_only_every,
        weights_only_keep_last=spec.checkpoint.weights_only_keep_last,
        token_export_every=spec.token_export.every_steps if spec.token_export.enabled else None,
        profile_steps=list(trainer.profile.steps),
    )


def replaced_within_s(spec: EchoRLRunSpec) -> float:
    """How long a gang waits for a pod in the place of a lost one: less than it may go without a step."""
    return min(LONGEST_REPLACEMENT_S, duration_seconds(spec.stall_policy.no_step_for) / 2)


def _memory(spec: EchoRLRunSpec) -> config.MemoryConfig | None:
    memory, policy = spec.checkpoint.memory, restart_policy(spec)
    if memory is None:
        return None
    ruled = (rule.exit_codes for rule in restart_rules(spec) if rule.role is names.Role.TRAINER)
    return config.MemoryConfig(
        every_steps=memory.every_steps,
        limit_bytes=int(quantity_number(memory.limit)),
        mirror=memory.mirror,
        replaced_within_s=replaced_within_s(spec),
        max_restarts=policy.max_restarts,
        backoff_s=policy.backoff_s,
        reset_after_steps=policy.reset_after_steps,
        passed_on=sorted(set().union(*ruled)),
    )


def _speculative(spec: EchoRLRunSpec) -> config.SpeculativeConfig | None:
    speculative = spec.inference.speculative
    return None if speculative is None else config.SpeculativeConfig(**speculative.model_dump())


def _inference(spec: EchoRLRunSpec, placement: Placement) -> list[config.InferenceConfig]:
    inference = spec.inference
    return [
        config.InferenceConfig(
            model=_model(spec, placement),
            served_name=names.SERVED_MODEL_NAME if spec.model.lora is None else names.SERVED_BASE_NAME,
            host=engine.host,
            port=engine.port,
            tensor_parallel=inference.tensor_parallel or max(1, inference.gpus_per_replica),
            device=placement.device,
            speculative=_speculative(spec),
            quantization=inference.quantization,
            router_replay=spec.trainer.router_replay,
            extra_args=list(inference.extra_args),
        )
        for engine in placement.engines
    ]


def role_configs(run: EchoRLRun, placement: Placement) -> config.RoleConfigs:
    """The typed config of each role. ``run`` has passed validation; the same arguments give the same result."""
    spec = run.spec
    return config.RoleConfigs(
        orchestrator=_orchestrator(spec, placement),
        trainer=_trainer(spec, placement),
        inference=_inference(spec, placement),
    )
