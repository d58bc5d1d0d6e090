"""What a rank trains: the policy, sharded, with optimizer, schedule and step around it."""

from dataclasses import dataclass

import structlog
from transformers.utils import logging as transformers_logging

from echorl_core.config import TrainerConfig
from echorl_trainer.attention import kernel_name
from echorl_trainer.experts import has_experts
from echorl_trainer.grouped_products import products_name
from echorl_trainer.loading import start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Ranks
from echorl_trainer.state import TrainState
from echorl_trainer.step import StepRunner

log = structlog.get_logger()


@dataclass(frozen=True)
class Learner:
    """The sharded policy with all that trains it."""

    state: TrainState
    runner: StepRunner


def build_learner(config: TrainerConfig, ranks: Ranks) -> Learner:
    """Load the start model, shard it, and put optimizer, schedule and step around it; collective.

    Raises:
        ValueError: the model cannot be trained, or a custom loss cannot be loaded.
    """
    loss = policy_loss(config.loss, config.python_path, config.losses)
    transformers_logging.disable_progress_bar()
    policy = start_policy(
        config.model,
        ranks,
        seed=config.seed,
        compile=config.compile,
        activation_checkpointing=config.activation_checkpointing,
    )
    fixed = {
        "spec.seed": str(config.seed),
        "spec.model.name (its weights)": policy.fingerprint,
        "spec.model.dtype": config.model.dtype,
        "spec.trainer.optimizer.type": config.optimizer.type,
        "spec.trainer.optimizer.stateDtype": config.optimizer.state_dtype,
    }
    optimizer = build_optimizer(policy, config.optimizer)
    experts = {"experts": products_name()} if has_experts(policy.model.config) else {}
    if config.router_replay and not experts:
        raise ValueError("router_replay: found true, accepted for a model without experts: false")
    if experts and not config.router_replay:
        log.warning(
            "engine and trainer each choose a token's experts, and may choose differently where two are nearly as good;"
            " mismatch_kl and the logprob gap show by how much; trainer.routerReplay has the trainer take the engine's"
        )
    log.info(
        "policy is ready",
        device=str(ranks.device),
        dtype=config.model.dtype,
        attention=kernel_name(ranks.device, policy.compute_dtype),
        **experts,
        router_replay=config.router_replay,
        compiled=policy.compiled,
        context=ranks.context_size,
        expert=ranks.expert_size,
        activation_checkpointing=config.activation_checkpointing,
        optimizer=config.optimizer.type,
        fused_optimizer=bool(optimizer.defaults.get("fused")),
    )
    schedule = build_schedule(optimizer, config.optimizer, config.max_steps)
    runner = StepRunner(
        policy,
        optimizer,
        schedule,
        loss,
        ranks,
        config.optimizer.max_grad_norm,
        config.gradient_accumulation,
    )
    return Learner(TrainState(policy, optimizer, ranks, fixed), runner)
