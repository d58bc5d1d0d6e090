"""Synthetic sealed batches: seeded, so that every attempt and every replay sees the same bytes."""

from pathlib import Path

import numpy as np

from echorl_core.arrays import pack
from echorl_core.rundir import step_name, write_folder
from echorl_core.wire.batch import MicroBatch, RankBatch, TokenRole

RUN_UID = "0f0e0d0c-test-run"
LENGTHS = (9, 6)


def micro_batch(generator: np.random.Generator, *, version: int, name: str) -> MicroBatch:
    """Two documents: a prompt, actions that train RL, environment output that trains ECHO."""
    total = sum(LENGTHS)
    role = np.concatenate([_roles(length) for length in LENGTHS])
    action, output = role == TokenRole.ACTION, role == TokenRole.ENV_OUTPUT
    return MicroBatch(
        sample_ids=[f"{name}/{index}" for index in range(len(LENGTHS))],
        environments=["terminal", "digits"],
        lengths=np.array(LENGTHS, np.int32),
        token_ids=generator.integers(0, 256, total).astype(np.int32),
        role=role,
        logprobs=np.where(action, -5.5, 0.0).astype(np.float32),
        version_low=np.where(action, version, -1).astype(np.int32),
        version_high=np.where(action, version, -1).astype(np.int32),
        rl_weight=action.astype(np.float32),
        ce_weight=(0.05 * output).astype(np.float32),
        advantage=(action * generator.normal(size=total)).astype(np.float32),
        temperature=np.ones(total, np.float32),
    )


def _roles(length: int) -> np.ndarray:
    role = np.full(length, TokenRole.CONTEXT, np.uint8)
    role[2:-2] = TokenRole.ACTION
    role[-2:] = TokenRole.ENV_OUTPUT
    return role


def rank_batch(
    step: int,
    rank: int = 0,
    *,
    num_ranks: int = 1,
    attempt: int = 1,
    run_uid: str = RUN_UID,
    checkpoint: bool = False,
    last: bool = False,
) -> RankBatch:
    """What ``rank`` trains at ``step``; the same bytes for equal arguments, the same tokens in every attempt."""
    generator = np.random.default_rng([step, rank, num_ranks])
    micro_batches = [micro_batch(generator, version=step - 1, name=f"s{step}r{rank}m{m}") for m in range(2)]
    documents = 2 * num_ranks * len(LENGTHS)
    actions = 2 * num_ranks * sum(length - 4 for length in LENGTHS)
    return RankBatch(
        run_uid=run_uid,
        attempt=attempt,
        step=step,
        rank=rank,
        num_ranks=num_ranks,
        denominators={"rl": float(actions), "ce": float(2 * documents)},
        checkpoint=checkpoint,
        last=last,
        micro_batches=micro_batches,
    )


def record(folder: Path, steps: int, *, num_ranks: int = 1) -> None:
    """Write batches 1..``steps`` as a recording."""
    for step in range(1, steps + 1):
        ranks = {f"rank_{r}.bin": pack(rank_batch(step, r, num_ranks=num_ranks)) for r in range(num_ranks)}
        write_folder(folder / step_name(step), ranks)
