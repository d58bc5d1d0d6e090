"""Numbers of an eval: avg@n, pass@k, rewards per example, likelihood of environment tokens. Pure functions."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import ErrorKind
from echorl_orchestrator.metrics.statistics import Columns, statistics
from echorl_orchestrator.rollout.groups import NO_REWARD


@dataclass
class EnvNll:
    """Sum of negative log-likelihoods (nats) over environment tokens."""

    sum: float = 0.0
    tokens: int = 0
    errors: int = 0
    """Sequences that could not be scored."""

    @staticmethod
    def total(parts: "Iterable[EnvNll]") -> "EnvNll":
        """The sum of the parts."""
        whole = EnvNll()
        for part in parts:
            whole.sum += part.sum
            whole.tokens += part.tokens
            whole.errors += part.errors
        return whole

    @property
    def mean(self) -> float | None:
        """Nats per token; None if there was none."""
        return self.sum / self.tokens if self.tokens else None


@dataclass
class Example:
    """The episodes of one eval task."""

    index: int
    key: int | str | None = None
    survivors: list[EpisodeOutcome] = field(default_factory=list)
    errors: list[ErrorKind] = field(default_factory=list)
    failed: list[FailedEpisode] = field(default_factory=list)
    """Those of ``errors`` that were played."""
    nll: EnvNll = field(default_factory=EnvNll)

    @property
    def rewards(self) -> list[float]:
        """The rewards of the survivors."""
        return [float(outcome.reward or 0.0) for outcome in self.survivors]

    def drop_unscored(self) -> None:
        """Nobody scores the group: episodes without a reward of their own have failed."""
        unscored = [outcome for outcome in self.survivors if outcome.reward is None]
        self.survivors = [outcome for outcome in self.survivors if outcome.reward is not None]
        for outcome in unscored:
            self.lose(FailedEpisode(outcome, group_of(outcome), ErrorKind.ENV, NO_REWARD))

    def lose(self, episode: FailedEpisode) -> None:
        """Note an episode that failed."""
        self.errors.append(episode.kind)
        self.failed.append(episode)

    def fall(self, kind: ErrorKind, why: str) -> None:
        """Count every survivor as failed: the group is scored as a whole or not at all."""
        survivors, self.survivors = self.survivors, []
        for outcome in survivors:
            self.lose(FailedEpisode(outcome, group_of(outcome), kind, f"the group could not be scored: {why}"))


def group_of(outcome: EpisodeOutcome) -> str:
    """The group of an eval's episode, whose name begins with it."""
    return outcome.episode.rpartition("-")[0]


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased probability that one of ``k`` samples is correct, from ``correct`` of ``n`` (arXiv 2107.03374, eq. 1).

    Raises:
        ValueError: unless 1 <= k <= n and 0 <= correct <= n.
    """
    if not (1 <= k <= n and 0 <= correct <= n):
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= correct <= n, found k={k}, n={n}, correct={correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def average(groups: Sequence[Sequence[float]], group_size: int) -> Columns:
    """``avg@<group_size>``: mean over examples of each one's mean reward, so that all weigh alike whatever has failed.

    ``avg@<group_size>/examples`` counts them: those with a survivor. The mean is None where there is none.
    """
    means = [math.fsum(group) / len(group) for group in groups if group]
    return {f"avg@{group_size}": _mean(means), f"avg@{group_size}/examples": len(means)}


def pass_rates(groups: Sequence[Sequence[float]]) -> Columns:
    """Mean pass@k over examples for k = 1, 2, 4, ...; empty unless every reward is 0 or 1.

    An example counts for a k only if at least k of its episodes survived; ``pass@<k>/examples`` is how many do.
    """
    rewards = [reward for group in groups for reward in group]
    if not rewards or any(reward not in {0.0, 1.0} for reward in rewards):
        return {}
    rates: Columns = {}
    k = 1
    while k <= max(len(group) for group in groups):
        chances = [pass_at_k(len(group), int(sum(group)), k) for group in groups if len(group) >= k]
        rates[f"pass@{k}"] = math.fsum(chances) / len(chances)
        rates[f"pass@{k}/examples"] = len(chances)
        k *= 2
    return rates


def fresh_observations(samples: Sequence[Sample]) -> Iterator[tuple[Sample, list[int]]]:
    """Positions of environment tokens per sample, without those in a prefix that an earlier branch shares."""
    for number, sample in enumerate(samples):
        shared = max((_common_prefix(sample, other) for other in samples[:number]), default=0)
        observed = np.flatnonzero(sample.role == TokenRole.ENV_OUTPUT)
        positions = [int(position) for position in observed if position >= max(shared, 1)]
        if positions:
            yield sample, positions


def row(environment: str, version: int, examples: Sequence[Example], *, group_size: int) -> dict[str, Any]:
    """One line of evals.jsonl, without attempt and time; ``step`` is the version that made the eval due."""
    survivors = [outcome for example in examples for outcome in example.survivors]
    nll = EnvNll.total([example.nll for example in examples])
    errors = Counter(str(kind) for example in examples for kind in example.errors)
    rewards = statistics([reward for example in examples for reward in example.rewards])
    groups = [example.rewards for example in examples if example.survivors]
    return {
        "environment": environment,
        "step": version,
        "reward": rewards.pop("mean"),
        **{f"reward/{name}": value for name, value in rewards.items()},
        **average(groups, group_size),
        **pass_rates(groups),
        "env_nll": nll.mean,
        "env_nll/tokens": nll.tokens,
        "env_nll/errors": nll.errors,
        "episodes": len(survivors),
        "errors": errors.total(),
        **{f"errors/{kind}": count for kind, count in errors.items()},
        "truncated": sum(outcome.truncated for outcome in survivors),
        "group_size": group_size,
        "turns_mean": _mean([outcome.num_turns for outcome in survivors]),
        "tokens/sampled": sum(outcome.sampled_tokens for outcome in survivors),
        "version_low": min((outcome.version_low for outcome in survivors), default=None),
        "version_high": max((outcome.version_high for outcome in survivors), default=None),
        "examples": [
            {"index": example.index, "key": example.key, "rewards": example.rewards, "errors": len(example.errors)}
            for example in examples
        ],
    }


def skipped_row(environment: str, version: int, reason: str) -> dict[str, Any]:
    """One line of evals.jsonl, without attempt, for an eval that was due at ``version`` and is not played."""
    return {"environment": environment, "step": version, "skipped": reason}


def _common_prefix(sample: Sample, other: Sample) -> int:
    length = min(sample.num_tokens, other.num_tokens)
    different = np.flatnonzero(sample.token_ids[:length] != other.token_ids[:length])
    return int(different[0]) if len(different) else length


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
