"""The trainer's part of ``echorl preflight``: one real step, and adapters for hot swaps, published to a folder.

    python -m echorl_trainer.preflight_step --config trainer.json --out DIR --swaps 5

Version 0 is the start, version 1 comes of one step of the run's own loss and optimizer on the probe's tokens. That step
may be too small to be seen in an engine's precision. So the B factors of further versions are drawn anew, large enough
that the probe's logprobs move by several times the tolerance.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import structlog
import torch
from pydantic import ValidationError
from torch.distributed.tensor import DTensor, distribute_tensor

from echorl_core import logs, names, preflight_step
from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.preflight_step import PreflightStep
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.ending import end
from echorl_trainer.health import Watch
from echorl_trainer.learner import build_learner
from echorl_trainer.losses import HookError
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.probe import PROBE_TOLERANCE, probe_ids, probe_logprobs
from echorl_trainer.publish import Publisher
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import DiskStore

log = structlog.get_logger()

MOVES_BY = 4.0
"""By how many tolerances a swap moves some logprob of the probe."""
_FIRST_SCALE = 1e-3
_TRIES = 30


def run_preflight_step(
    config: TrainerConfig, identity: RunIdentity, out: Path, *, swaps: int, ranks: Ranks
) -> PreflightStep:
    """Publish version 0, version 1 after a step, and ``swaps`` more under ``out``.

    Raises:
        ValueError: no adapter trains, the model cannot be trained, or no swap would be seen in the probe.
        NonFinite, HookError: from the step.
    """
    if config.model.lora is None:
        raise ValueError("model.lora: is not set, so there is no adapter to check")
    learner = build_learner(config, ranks)
    policy = learner.state.policy
    tokens = probe_ids(config.model, identity.uid, config.probe_tokens)
    store = DiskStore(out / "versions", kept=swaps + 2)
    publisher = Publisher(policy, ranks, identity, probe_token_ids=tokens, store=store, watch=Watch())
    found = [publish(publisher, 0)]
    batch = probe_batch(identity, tokens, probe_logprobs(policy, ranks, tokens))
    outcome = learner.runner.run(batch)
    found.append(publish(publisher, 1))
    for version in range(2, swaps + 2):
        move(policy, ranks, tokens, version)
        found.append(publish(publisher, version))
    return PreflightStep(gradient_norm=outcome.metrics["optim/grad_norm"] or 0.0, versions=found)


def publish(publisher: Publisher, version: int) -> PolicyAnnouncement:
    """Publish what the policy holds as ``version``."""
    publication = publisher.begin(version)
    assert publication is not None  # noqa: S101 - this is rank 0, with a store
    return publication.result()


def probe_batch(identity: RunIdentity, token_ids: Sequence[int], logprobs: Sequence[float]) -> RankBatch:
    """A batch of the probe alone, as if it had been sampled: every token but the first has advantage 1."""
    action = np.arange(len(token_ids)) > 0
    ones = action.astype(np.float32)
    version = np.where(action, 0, -1).astype(np.int32)
    micro = MicroBatch(
        sample_ids=["probe"],
        environments=["preflight"],
        lengths=np.array([len(token_ids)], np.int32),
        token_ids=np.array(token_ids, np.int32),
        role=np.where(action, TokenRole.ACTION, TokenRole.CONTEXT).astype(np.uint8),
        logprobs=np.array([0.0, *logprobs], np.float32),
        version_low=version,
        version_high=version,
        rl_weight=ones,
        ce_weight=np.zeros_like(ones),
        advantage=ones,
        temperature=np.ones_like(ones),
    )
    return RankBatch(
        run_uid=identity.uid,
        attempt=identity.attempt,
        step=1,
        rank=0,
        num_ranks=1,
        denominators={"rl": float(action.sum())},
        checkpoint=False,
        last=False,
        micro_batches=[micro],
    )


def move(policy: Policy, ranks: Ranks, tokens: list[int], seed: int) -> None:
    """Draw every B anew, so that some logprob of the probe moves by ``MOVES_BY`` tolerances at least.

    Raises:
        ValueError: no size of B does that with finite logprobs.
    """
    before = probe_logprobs(policy, ranks, tokens)
    needed = MOVES_BY * PROBE_TOLERANCE[policy.dtype]
    for power in range(_TRIES):
        draw(policy, seed, _FIRST_SCALE * 2.0**power)
        moved = max(abs(new - old) for new, old in zip(probe_logprobs(policy, ranks, tokens), before, strict=True))
        if moved >= needed:
            return
    raise ValueError(f"model.lora: no adapter of this form moves the probe's logprobs by {needed:g} nats")


@torch.no_grad()
def draw(policy: Policy, seed: int, scale: float) -> None:
    """Fill every B from a normal distribution of deviation ``scale``."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if name.endswith(".lora_B.weight"):
            values = (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.device)
            if isinstance(parameter, DTensor):
                values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
            parameter.copy_(values)


def main(arguments: Sequence[str]) -> ExitCode:
    """Do what the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m echorl_trainer.preflight_step", description="Train one step and publish adapters."
    )
    parser.add_argument("--config", type=Path, required=True, help="the trainer's config as JSON")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {preflight_step.FILE} and what it names")
    parser.add_argument("--swaps", type=int, default=5, help="versions after those of the step")
    options = parser.parse_args(arguments)
    logs.configure(f"{names.Role.TRAINER}-preflight", attempt=1)
    try:
        config = TrainerConfig.model_validate_json(options.config.read_text())
        identity = RunIdentity.from_environment(os.environ)
        ranks = connect(timeout_s=config.step_timeout_s)
        found = run_preflight_step(config, identity, options.out, swaps=options.swaps, ranks=ranks)
        preflight_step.write(options.out, found)
    except (OSError, ValidationError, ValueError, HookError) as error:
        log.error("the preflight step failed", error=str(error))
        return ExitCode.BAD_INPUT
    except NonFinite as error:
        log.error("the preflight step failed", error=str(error))
        return ExitCode.NON_FINITE
    disconnect()
    log.info("the preflight step is done", versions=len(found.versions), gradient_norm=found.gradient_norm)
    return ExitCode.OK


if __name__ == "__main__":
    end(main(sys.argv[1:]))
