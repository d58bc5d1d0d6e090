"""A short supervised fit on scripted demonstrations, action tokens only, by the trainer's own optimizer step."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from echorl_core.config import LossConfig, ModelConfig, OptimizerConfig
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_orchestrator.environments.builtin.parts.terminal_policy import DemonstrationTokens
from echorl_trainer.copier import gathered
from echorl_trainer.loading import start_policy
from echorl_trainer.lora import published_parameters
from echorl_trainer.losses import policy_loss
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.step import StepRunner


def supervised_batch(step: int, demonstrations: Sequence[DemonstrationTokens]) -> RankBatch:
    """One packed micro-batch whose action tokens carry cross-entropy, averaged over them."""
    ids = np.concatenate([np.array(one.ids, np.int32) for one in demonstrations])
    action = np.concatenate([np.array(one.action) for one in demonstrations])
    zeros = np.zeros(len(ids), np.float32)
    none = np.full(len(ids), -1, np.int32)
    micro = MicroBatch(
        sample_ids=[f"demonstration-{index}" for index in range(len(demonstrations))],
        environments=["terminal"] * len(demonstrations),
        lengths=np.array([len(one.ids) for one in demonstrations], np.int32),
        token_ids=ids,
        role=np.where(action, TokenRole.CONTEXT, TokenRole.ENV_OUTPUT).astype(np.uint8),
        logprobs=zeros,
        version_low=none,
        version_high=none,
        rl_weight=zeros,
        ce_weight=action.astype(np.float32),
        advantage=zeros,
        temperature=np.ones(len(ids), np.float32),
    )
    return RankBatch(
        run_uid="warm-start",
        attempt=1,
        step=step,
        rank=0,
        num_ranks=1,
        denominators={"rl": 0.0, "ce": float(action.sum())},
        checkpoint=False,
        last=False,
        micro_batches=[micro],
    )


def fit(source: Path, target: Path, batches: Sequence[Sequence[DemonstrationTokens]], *, lr: float, seed: int) -> float:
    """Fit the model in ``source`` on ``batches``, one optimizer step each; write it to ``target``.

    Returns the cross-entropy of the last step's action tokens, in nats.
    """
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ranks = connect(device="cpu")
    try:
        config = ModelConfig(path=str(source), dtype="float32", max_model_len=512, renderer="compact")
        policy = start_policy(config, ranks, seed=seed)
        optimizer_config = OptimizerConfig(lr=lr, schedule="cosine", warmup_steps=5, min_lr_ratio=0.1)
        optimizer = build_optimizer(policy, optimizer_config)
        schedule = build_schedule(optimizer, optimizer_config, len(batches))
        runner = StepRunner(
            policy, optimizer, schedule, policy_loss(LossConfig()), ranks, optimizer_config.max_grad_norm
        )
        loss = float("nan")
        for step, demonstrations in enumerate(batches, start=1):
            metrics = runner.run(supervised_batch(step, demonstrations)).metrics
            loss = metrics["loss/ce"] or 0.0
            if step % 40 == 0 or step == len(batches):
                print(f"warm start: step {step}/{len(batches)}, action cross-entropy {loss:.3f} nats", flush=True)  # noqa: T201
        shutil.copytree(source, target, dirs_exist_ok=True)
        with torch.no_grad():
            weights = {name: gathered(one, policy.dtype) for name, one in published_parameters(policy).items()}
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    finally:
        disconnect()
    return loss
