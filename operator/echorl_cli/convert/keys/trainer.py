"""Keys of ``[trainer]``."""

from collections.abc import Iterator

from echorl_cli.convert.keys.row import IMPORT, Key, made, none, same

_EXPERTS = "routers train and multiply in float32, experts in groups"
_MEMORY = "offloading to host memory is not supported"
_OLD_LOSS = "of a loss before the probability mask; set loss.maskLow and loss.maskHigh"


def _model() -> Iterator[Key]:
    base = "trainer.model"
    yield made(f"{base}.seq_len", "spec.trainer.seqLen", "where it is above maxModelLen", 8192)
    yield made(f"{base}.compile", "spec.trainer.compile", "true; false where the key is null", None)
    yield none(f"{base}.compile.fullgraph", "compiled by torch.compile's own rules", True)
    yield made(
        f"{base}.ac",
        "spec.trainer.activationCheckpointing",
        "full unless `mode` says otherwise; none where the key is null",
        None,
        {},
    )
    yield made(f"{base}.ac.mode", "spec.trainer.activationCheckpointing", "full or selective", "selective")
    yield none(f"{base}.ac.freq", "EchoRL chooses the layers", 2)
    yield none(f"{base}.ac.targets", "EchoRL chooses what selective recomputes", ["norm"])
    yield same(f"{base}.dp_replicate", "spec.trainer.parallel.replicate", 1)
    yield same(f"{base}.cp", "spec.trainer.parallel.context", 1)
    yield same(f"{base}.ep", "spec.trainer.parallel.expert", 1)
    yield none(f"{base}.cp_style", "EchoRL chooses how ranks share a sequence", "ulysses")
    yield made(f"{base}.lora", "spec.model.lora", "an adapter", {})
    yield made(f"{base}.lora.rank", "spec.model.lora.rank", "with an adapter", 8, 16)
    yield made(f"{base}.lora.alpha", "spec.model.lora.alpha", "with an adapter", 16.0, 32.0)
    modules = [f"{name}_proj" for name in ["q", "k", "v", "o", "gate", "up", "down"]]
    how = "names of modules only; prime-rl's default also has those of mixtures of experts"
    yield made(f"{base}.lora.target_modules", "spec.model.lora.targetModules", how, ["q_proj"], modules)
    yield none(f"{base}.lora.dropout", "adapters have no dropout", 0.1)
    yield none(f"{base}.lora.modules_to_save", "only the adapter trains", ["embed"])
    yield none(f"{base}.attn", "EchoRL picks the attention kernel by device and dtype", "flash_attention_3")
    yield none(f"{base}.impl", "EchoRL loads models through transformers", "custom")
    yield none(f"{base}.trust_remote_code", "code from model repositories is never run", True)
    yield from _absent(base)


def _absent(base: str) -> Iterator[Key]:
    """Keys of the model that only its shape in memory, experts and prime-rl's own tests are about."""
    yield none(f"{base}.ac_offloading.*", _MEMORY, {"pin_memory": True}, "on")
    yield none(f"{base}.optim_cpu_offload", "spec.trainer.optimizer.cpuOffload is off unless it is set", True, "on")
    yield none(f"{base}.fsdp_cpu_offload", _MEMORY, True)
    yield none(f"{base}.full_offload.*", _MEMORY, {"x": 1})
    yield none(f"{base}.moe_router_dtype", _EXPERTS, "float32")
    for key in ("quantization", "fusions"):
        yield none(f"{base}.{key}.*", "matrices are multiplied as torch does it, in the model's dtype", {"type": "fp8"})
    yield none(f"{base}.conversion_dir", "weights are read as Hugging Face names them", "x")
    for key in ("ep_comm_backend", "deepep_num_sms", "deepep_token_chunk_size", "moe_use_grouped_mm"):
        yield none(f"{base}.{key}", _EXPERTS, 1)
    yield none(f"{base}.moe.*", _EXPERTS, {"dispatch": {"type": "torch"}})
    yield none(f"{base}.freeze_moe_router", _EXPERTS, True)
    yield none(f"{base}.reshard_after_forward", "EchoRL chooses how FSDP2 shards", True)
    yield none(
        f"{base}.optimization_dtype",
        "master weights are float32; moments: spec.trainer.optimizer.stateDtype",
        "float32",
    )
    yield none(f"{base}.reduce_dtype", "gradients are summed in float32", "float32")
    yield none(f"{base}.fp8", "training in 8 bits is not supported", True)
    yield none(f"{base}.index_cache.*", "sparse attention is not supported", {"topk_freq": 2})
    yield none(f"{base}.fused_lm_head_token_chunk_size", "the output head always works in chunks", 8192)
    yield none(f"{base}.debug.*", "for prime-rl's own tests", {"num_layers": 2})


def _loss() -> Iterator[Key]:
    base, to = "trainer.loss", "spec.algorithm.loss"
    yield made(f"{base}.type", f"{to}.type", "default: dppo; ipo; custom", "default")
    yield made(f"{base}.dppo_mask_low", f"{to}.maskLow", "of the default loss", 0.1)
    yield made(f"{base}.dppo_mask_high", f"{to}.maskHigh", "of the default loss", 0.3)
    yield made(f"{base}.ipo_threshold", f"{to}.maskLow, maskHigh", "of ipo, for both", 0.15, 0.1)
    yield made(f"{base}.kl_tau", f"{to}.klTau", "divided by adv_tau", 0.01)
    yield made(
        f"{base}.adv_tau", "spec.algorithm.rlWeight", "the policy-gradient term times it; klTau is divided by it", 2.0
    )
    yield made(f"{base}.import_path", f"{to}.import", IMPORT, "ours.loss")
    yield made(f"{base}.kwargs.*", f"{to}.kwargs", "without secrets", {"a": 1})
    old = "ratio_type ratio_length_norm clip_ratio clip_mask_high clip_mask_low mask_ratio_high mask_ratio_low"
    older = "sequence_mask_high sequence_mask_low sequence_mask_ratio_low sequence_mask_ratio_high sequence_clip_high"
    oldest = "token_mask_high token_mask_low geo_mask_high geo_mask_low teacher_tau ref_tau"
    for key in f"{old} {older} {oldest}".split():
        yield none(f"{base}.{key}", _OLD_LOSS, 1.5)


def _optimizer() -> Iterator[Key]:
    base, to = "trainer.optim", "spec.trainer.optimizer"
    yield made(f"{base}.type", f"{to}.type", "sign_sgd becomes signSgd", "adamw")
    yield same(f"{base}.lr", f"{to}.lr", 2e-6)
    yield same(f"{base}.weight_decay", f"{to}.weightDecay", 0.1)
    yield made(f"{base}.max_norm", f"{to}.maxGradNorm", "above 0", 0.5)
    for key, default in (("betas1", 0.9), ("betas2", 0.999)):
        yield made(f"{base}.{key}", f"{to}.betas", "both together; with muon the default is 0.9 and 0.95", 0.8, default)
    yield none(f"{base}.mu", "the momentum of muon is always 0.95", 0.9)
    for key in ("momentum", "nesterov"):
        yield none(f"{base}.{key}", "sgd has no momentum", 0.9)
    yield made("trainer.scheduler.type", f"{to}.schedule", "constant, linear or cosine", "cosine")
    yield made("trainer.scheduler.warmup_steps", f"{to}.warmupSteps", "with linear and cosine", 5, 10)
    yield made("trainer.scheduler.min_lr", f"{to}.minLrRatio", "divided by lr", 1e-7)
    yield none("trainer.scheduler.decay_steps", "linear falls from the end of warm-up to maxSteps", 20)


def _rest() -> Iterator[Key]:
    yield made("trainer.enable_token_export", "spec.tokenExport.enabled", "a table counts as true", True)
    yield none(
        "trainer.rollout_transport.*", "batches travel over HTTP and are kept on the run's volume", {"type": "zmq"}
    )
    yield none("trainer.data.*", "for benchmarks of the trainer alone: python -m echorl_trainer.replay", {"fake": {}})
    yield none(
        "trainer.matmul_precision", "EchoRL chooses the precision of products; logits and losses are float32", "highest"
    )
    yield same("trainer.enable_router_replay", "spec.trainer.routerReplay", True)
    yield none("trainer.max_concurrent_runs", "one trainer serves one run", 2)
    yield none("trainer.dist_timeout_seconds", "stallPolicy.noStepFor bounds a step", 900)
    yield none("trainer.metrics_server.*", "every role always serves /metrics", {"port": 8000})
    yield none("trainer.heartbeat.*", "alert on the metrics of the run instead", {"url": "https://x"})
    for key in ("gc", "bench"):
        yield none(f"trainer.{key}.*", "chosen by EchoRL", {"interval": 10})
    for key in ("memory_profiler_path", "trace_path"):
        yield none(f"trainer.{key}", "spec.trainer.profile.steps traces steps", "trace")
    for key in ("recompute_logprobs", "async_level", "max_async_level"):
        yield none(f"trainer.{key}", "algorithm.maxStaleness bounds how far behind a sample may be", 1)
    yield none("trainer.experimental.*", "an experiment of prime-rl's", {"x": 1})


ROWS: tuple[Key, ...] = (*_model(), *_loss(), *_optimizer(), *_rest())
