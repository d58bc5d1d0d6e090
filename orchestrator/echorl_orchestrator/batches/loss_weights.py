"""What trains, and by which denominator: per-token weights of a batch's samples. Pure functions.

Loss of the trainer: ``L = sum_c (1/N_c) sum_t w_t l_c(t)``; this module fixes every ``w_t`` and ``N_c``.
Samples arrive with candidate weights: ``rl_weight`` 1 on action tokens that may train, ``ce_weight`` alpha on ECHO
tokens, which ``ce_mask`` tells also where alpha is 0; a token shared by branches counts in the first of them alone.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from echorl_core.config import BatchConfig
from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.rollout.groups import ReadyEpisode


def weigh(
    episodes: Sequence[ReadyEpisode], config: BatchConfig, echo_environments: frozenset[str], *, echo_scale: float = 1.0
) -> tuple[list[Sample], dict[str, float]]:
    """Samples with something to train, weights final, and the denominators ``rl`` and ``ce`` (0: skipped).

    Args:
        episodes: of the batch; verdicts say which components each may train.
        config: aggregation, rewardPerBranch, rlWeight where an episode's environment has no own, and ECHO's normaliser.
        echo_environments: environments with an ECHO block; only their sequences count for ``perSequence``.
        echo_scale: share of every alpha that this step trains with; denominators do not depend on it.
    """
    kept: list[Sample] = []
    rl_total = ce_total = 0.0
    for episode in episodes:
        samples = [_masked(sample, episode) for sample in episode.outcome.samples]
        divisors, counted = _rl_shares([int(np.count_nonzero(sample.rl_weight)) for sample in samples], config)
        rl_weight = (episode.own or config).rl_weight
        if rl_weight:
            rl_total += counted
        for sample, divisor in zip(samples, divisors, strict=True):
            ce_weight, ce_count = _echo(sample, config, counts=sample.environment in echo_environments)
            # A sequence that counts for a denominator must not vanish from it because nothing of it is left to train.
            ce_total += ce_count if episode.verdict.ce else 0.0
            final = msgspec.structs.replace(
                sample,
                rl_weight=(sample.rl_weight * (rl_weight / divisor)).astype(np.float32),
                ce_weight=(ce_weight * np.float32(echo_scale)).astype(np.float32),
            )
            if final.rl_weight.any() or final.ce_weight.any():
                kept.append(final)
    any_ce = any(sample.ce_weight.any() for sample in kept)
    return kept, {"rl": rl_total, "ce": ce_total if any_ce else 0.0}


def _rl_shares(trainable: Sequence[int], config: BatchConfig) -> tuple[list[int], float]:
    """By what each branch's weights are divided, and what the episode adds to the denominator.

    Args:
        trainable: tokens of each branch that the policy gradient may train; the branches with any are those that count.
        config: aggregation and rewardPerBranch.
    """
    branches = sum(count > 0 for count in trainable) if config.reward_per_branch == "split" else 1
    branches = max(branches, 1)
    if config.aggregation == "token":
        return [branches] * len(trainable), sum(trainable) / branches
    if branches == 1:
        return [max(sum(trainable), 1)] * len(trainable), float(any(trainable))
    return [branches * max(count, 1) for count in trainable], 1.0


def echo_scale(step: int, warmup_steps: int) -> float:
    """Share of every alpha at a step: ``step / warmup_steps`` until it is 1."""
    return min(1.0, step / warmup_steps) if warmup_steps else 1.0


def _masked(sample: Sample, episode: ReadyEpisode) -> Sample:
    """The sample with its episode's advantage, and without the weights that filters took away."""
    nothing = np.zeros(sample.num_tokens, np.float32)
    rl_weight = sample.rl_weight if episode.verdict.rl else nothing
    advantage = np.where(rl_weight != 0, np.float32(episode.advantage), np.float32(0)).astype(np.float32)
    return msgspec.structs.replace(
        sample,
        reward=episode.outcome.reward,
        rl_weight=rl_weight,
        ce_weight=sample.ce_weight if episode.verdict.ce else nothing,
        advantage=advantage,
    )


def _echo(sample: Sample, config: BatchConfig, *, counts: bool) -> tuple[np.ndarray, float]:
    """Final ECHO weights of a sequence, and what it adds to the denominator.

    ``globalTokens``: alpha per token over the number of ECHO tokens, those of alpha 0 included. ``perSequence``:
    alpha / |O| over the number of sequences with |O| > 0, where O are all observation tokens of the sequence, filtered
    ones and warnings included.
    """
    if config.echo_normalizer == "globalTokens":
        return sample.ce_weight, float(np.count_nonzero(sample.ce_selected))
    observed = int(np.isin(sample.role, (TokenRole.ENV_OUTPUT, TokenRole.WARNING)).sum())
    if not observed or not counts:
        return np.zeros(sample.num_tokens, np.float32), 0.0
    return (sample.ce_weight / np.float32(observed)).astype(np.float32), 1.0
