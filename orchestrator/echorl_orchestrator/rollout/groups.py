"""A group: several episodes of one task. It closes when each of them finished or failed, and yields ready episodes."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from echorl_core.config import AdvantageConfig, BatchConfig
from echorl_core.wire.batch import Sample, TokenRole
from echorl_orchestrator.advantages.estimators import RewardError, advantages
from echorl_orchestrator.advantages.length_cost import cost_of
from echorl_orchestrator.episode_outcome import EpisodeOutcome, FailedEpisode
from echorl_orchestrator.failures import BadInputError, ErrorKind
from echorl_orchestrator.filters.rules import Verdict, group_matches, judge, matches
from echorl_orchestrator.rollout.mode_traits import MODES
from echorl_orchestrator.tasks.task_deck import Ticket

NO_REWARD = "the episode ended without a reward"


@dataclass
class ReadyEpisode:
    """A surviving episode of a closed group, with what the group decided about it."""

    outcome: EpisodeOutcome
    group: str
    ticket: Ticket
    advantage: float
    verdict: Verdict
    version_low: int | None
    """Lowest version bound of its action tokens; None: no policy of the run sampled it, and it never grows old."""
    partial: bool
    """Whether siblings of its group failed."""
    matched: frozenset[int] = frozenset()
    """Indices of the filters that hold for it, of all stages, those that ask for the advantage left out."""
    own: BatchConfig | None = None
    """How batches treat its environment; None: as all."""
    units: list["ReadyEpisode"] = field(default_factory=list)
    """Of a multi-agent episode: what trains, one for each member that learns. The advantage is NaN until they ship."""

    def staleness(self, step: int) -> int:
        """In versions, if it were trained at ``step``; 0 where no policy of the run sampled."""
        return 0 if self.version_low is None else step - 1 - self.version_low

    def trainable_tokens(self) -> int:
        """Tokens with a weight in a component that the verdict leaves on."""
        own = sum(_trainable(sample, self.verdict) for sample in self.outcome.samples)
        return own + sum(unit.trainable_tokens() for unit in self.units)

    @property
    def filtered(self) -> bool:
        """Whether an enforced filter took it, or a unit of it, out of a component."""
        return self.verdict.filtered or any(unit.filtered for unit in self.units)

    def without_texts(self) -> "ReadyEpisode":
        """A copy for metrics: without samples, messages and whatever else takes memory."""
        kept = replace(
            self.outcome, samples=[], messages=[], conversations=[], turns=[], info={}, transcript=[], units=[]
        )
        return replace(self, outcome=kept, units=[unit.without_texts() for unit in self.units])


def units_of(episodes: Iterable[ReadyEpisode]) -> list[ReadyEpisode]:
    """What trains of these episodes: the units of multi-agent ones, and the others themselves."""
    return [unit for episode in episodes for unit in episode.units or (episode,)]


@dataclass
class Group:
    """Episodes of one task that are being played."""

    key: str
    ticket: Ticket
    size: int
    seed: int
    """Seed of the environment; one for the whole group, so that its episodes differ by sampling alone."""
    survivors: dict[int, EpisodeOutcome] = field(default_factory=dict)
    """Outcomes of the episodes that did not fail, by index in the group."""
    failures: Counter[ErrorKind] = field(default_factory=Counter)
    unscored: list[FailedEpisode] = field(default_factory=list)
    """Episodes that ended well, and that nobody could score."""

    def episode(self, index: int) -> str:
        """Name of one of its episodes, unique within the run."""
        return f"{self.key}-e{index}"

    def add(self, index: int, outcome: EpisodeOutcome) -> ErrorKind | None:
        """Note that episode ``index`` has ended; why it failed, or None."""
        kind = failure_of(outcome)
        if kind is None:
            self.survivors[index] = outcome
        else:
            self.failures[kind] += 1
        return kind

    @property
    def pending_or_alive(self) -> int:
        """Episodes that are being played, wait for a slot, or survived."""
        return self.size - self.failures.total()

    @property
    def partial(self) -> bool:
        """Whether some episodes failed and some survived."""
        return bool(self.failures) and bool(self.survivors)

    def drop_unscored(self) -> int:
        """Nobody scores the group: episodes without a reward of their own have failed. How many did."""
        unscored = [index for index, outcome in self.survivors.items() if outcome.reward is None]
        for index in unscored:
            lost = self.survivors.pop(index)
            self.unscored.append(FailedEpisode(lost, self.key, ErrorKind.ENV, NO_REWARD))
        if unscored:
            self.failures[ErrorKind.ENV] += len(unscored)
        return len(unscored)

    def could_not_be_scored(self, kind: ErrorKind, error: str) -> None:
        """The group falls as a whole: scoring it failed."""
        self.unscored += [FailedEpisode(outcome, self.key, kind, error) for outcome in self.outcomes()]

    def outcomes(self) -> list[EpisodeOutcome]:
        """Survivors by index."""
        return [self.survivors[index] for index in sorted(self.survivors)]


def failure_of(outcome: EpisodeOutcome) -> ErrorKind | None:
    """Why an outcome cannot be used: its error, or a reward that is not finite. A missing one may yet be scored."""
    if outcome.error_kind is not None:
        return outcome.error_kind
    if outcome.reward is not None and not math.isfinite(outcome.reward):
        return ErrorKind.ENV
    return None


def as_failed(outcome: EpisodeOutcome, group: str, kind: ErrorKind) -> FailedEpisode:
    """An outcome that cannot be used, with the reason in words."""
    error = outcome.error or f"found the reward {outcome.reward}, accepted is a finite number"
    return FailedEpisode(outcome, group, kind, error)


def version_low_of(outcome: EpisodeOutcome) -> int:
    """Lowest version bound over the action tokens of the kept branches; the outcome's own bound if there are none."""
    lows = [
        int(sample.version_low[mask].min())
        for sample in outcome.samples
        if (mask := sample.role == TokenRole.ACTION).any()
    ]
    return min(lows, default=outcome.version_low)


def close(
    group: Group,
    config: BatchConfig,
    scores: Sequence[float] | None = None,
    given: Sequence[float] | None = None,
    *,
    vocab_size: int | None = None,
) -> list[ReadyEpisode]:
    """Advantages and group-stage filters for the survivors of a group whose episodes have all ended.

    Args:
        group: the group.
        config: of batches, as it holds for the group's environment.
        scores: rewards from the environment's group scoring, one per survivor; they replace the episodes' own.
        given: advantages of a user's own function, one per survivor.
        vocab_size: of the model; needed where a filter asks for gibberish.

    Raises:
        BadInputError: a reward that the configured advantage is not defined for.
    """
    outcomes = group.outcomes()
    if scores is not None:
        for outcome, score in zip(outcomes, scores, strict=True):
            outcome.reward = float(score)
    if not MODES[config.mode].advantages:
        given = [0.0] * len(outcomes)
    values = _advantages(group, outcomes, config.advantage) if given is None else given
    of_all = group_matches(config.filters, [float(outcome.reward or 0.0) for outcome in outcomes])
    return [
        _ready(group, config, outcome, advantage, of_all=of_all, vocab_size=vocab_size)
        for outcome, advantage in zip(outcomes, values, strict=True)
    ]


def _ready(
    group: Group,
    config: BatchConfig,
    outcome: EpisodeOutcome,
    advantage: float,
    *,
    of_all: frozenset[int],
    vocab_size: int | None,
) -> ReadyEpisode:
    matched = of_all | matches(config.filters, outcome.samples, vocab_size)
    return ReadyEpisode(
        outcome=outcome,
        group=group.key,
        ticket=group.ticket,
        advantage=advantage,
        verdict=judge(config.filters, "group", advantage, matched),
        version_low=version_low_of(outcome) if MODES[config.mode].versions else None,
        partial=group.partial,
        matched=matched,
        own=config,
        units=[_ready(group, config, unit, math.nan, of_all=of_all, vocab_size=vocab_size) for unit in outcome.units],
    )


def own_filter(episodes: Sequence[ReadyEpisode], config: BatchConfig, index: int, matched: Sequence[bool]) -> None:
    """Note for which episodes of a closed group a user's own filter holds, the rule ``index``."""
    for episode, holds in zip(episodes, matched, strict=True):
        if holds:
            episode.matched |= {index}
            episode.verdict = judge(config.filters, "group", episode.advantage, episode.matched)


def _advantages(group: Group, outcomes: Sequence[EpisodeOutcome], config: AdvantageConfig) -> list[float]:
    if config.type == "rae":
        return [math.nan] * len(outcomes)
    shaping = config.length_shaping
    costs = [] if shaping is None else [cost_of(outcome, shaping) for outcome in outcomes]
    try:
        return advantages([float(outcome.reward or 0.0) for outcome in outcomes], config, costs)
    except RewardError as error:
        raise BadInputError(
            f"spec.algorithm.advantage: {error}; environment {group.ticket.environment}, group {group.key}"
        ) from None


def usable_scores(scores: Sequence[float], survivors: int) -> bool:
    """Whether a group scoring returned one finite reward per survivor."""
    return len(scores) == survivors and all(math.isfinite(score) for score in scores)


def _trainable(sample: Sample, verdict: Verdict) -> int:
    mask = np.zeros(sample.num_tokens, dtype=bool)
    if verdict.rl:
        mask |= sample.rl_weight != 0
    if verdict.ce:
        mask |= sample.ce_weight != 0
    return int(mask.sum())
