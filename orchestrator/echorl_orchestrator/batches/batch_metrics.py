"""What a batch consists of, for the step's record, as flat ``group/name`` columns: pure functions."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from echorl_core.names import RESERVED_ENVIRONMENT_NAME
from echorl_orchestrator.batches.sealing import Content
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.metrics.statistics import Columns, statistics
from echorl_orchestrator.rollout.groups import ReadyEpisode, units_of
from echorl_orchestrator.tasks.curriculum import Pool


@dataclass(frozen=True)
class SinceLastBatch:
    """What there was beside a batch since the one before it."""

    window: Mapping[str, int] = field(default_factory=dict)
    """What was counted (``Counters.new_window``)."""
    filtered: Sequence[ReadyEpisode] = ()
    """Episodes that filters kept out of batches."""
    filters: Sequence[str] = ()
    """Names of all filters."""
    pools: Mapping[str, Mapping[Pool, int]] = field(default_factory=dict)
    """Tasks in each pool now, by environment, where there is a curriculum."""


def batch_columns(episodes: Sequence[ReadyEpisode], content: Content, step: int, since: SinceLastBatch) -> Columns:
    """What a batch consists of. An episode of several members is one unit for each that learns.

    What tells of play (rewards, solve rates, turns, tokens of an episode, environments' metrics, shares of filters and
    ends) is over its episodes and those filtered before it; what tells of training is over its episodes alone.

    Args:
        episodes: of the batch, verdicts complete.
        content: what is sealed of them.
        step: of the batch.
        since: what there was beside it.
    """
    versions = [episode.version_low for episode in episodes if episode.version_low is not None]
    outcomes = [episode.outcome for episode in episodes]
    facts: Columns = {
        "tokens/sampled": 0,
        **since.window,
        "batch/episodes": len({episode.outcome.whole for episode in episodes}),
        "batch/filtered_before": len(since.filtered),
        "batch/groups": len({episode.group for episode in episodes}),
        "batch/partial_groups": len({episode.group for episode in episodes if episode.partial}),
        "batch/trainable_episodes": content.trainable_episodes,
        "batch/rl_share": content.rl_share,
        "batch/truncated": sum(outcome.truncated for outcome in outcomes),
        "batch/echo_unattributed_episodes": sum(outcome.unattributed for outcome in outcomes),
        "batch/branches": sum(len(outcome.samples) for outcome in outcomes),
        "batch/branches_dropped": sum(outcome.dropped_branches for outcome in outcomes),
        "batch/branches_unused": sum(outcome.unused_branches for outcome in outcomes),
        "batch/samples": len(content.sample_ids),
        "batch/micro_batches": len(content.ranks[0]),
        "tokens/batch_sampled": sum(outcome.sampled_tokens for outcome in outcomes),
        "tokens/kept": sum(outcome.kept_tokens for outcome in outcomes),
        "tokens/trained": content.trained_tokens,
        "version/low": min(versions, default=None),
        "version/high": max(outcome.version_high for outcome in outcomes) if versions else None,
        "denominator/rl": content.denominators["rl"],
        "denominator/ce": content.denominators["ce"],
    }
    in_batch, everyone = by_scope(episodes), by_scope([*episodes, *units_of(since.filtered)])
    for scope, played in everyone.items():
        facts |= _of_play(scope, played, since.filters) | _of_training(scope, in_batch.get(scope, []), step)
        if scope != RESERVED_ENVIRONMENT_NAME:
            facts |= member_columns(scope, played, in_batch.get(scope, []))
    return facts | {
        f"pools/{name}/{pool}": count for name, sizes in since.pools.items() for pool, count in sizes.items()
    }


def by_scope(episodes: Sequence[ReadyEpisode]) -> dict[str, list[ReadyEpisode]]:
    """The episodes of ``all``, and of each environment by its name."""
    scopes: dict[str, list[ReadyEpisode]] = {RESERVED_ENVIRONMENT_NAME: list(episodes)}
    for episode in episodes:
        scopes.setdefault(episode.outcome.environment, []).append(episode)
    return scopes


def solve_rates(episodes: Sequence[ReadyEpisode]) -> Columns:
    """Share of groups whose episodes here all have reward 1 (``all``), or all 0 (``none``); None without rewards."""
    groups: dict[str, list[float]] = defaultdict(list)
    if all(episode.outcome.reward is None for episode in episodes):
        return {"all": None, "none": None}
    for episode in episodes:
        groups[episode.group].append(float(episode.outcome.reward or 0.0))
    count = max(1, len(groups))
    return {
        "all": sum(all(reward == 1.0 for reward in rewards) for rewards in groups.values()) / count,
        "none": sum(all(reward == 0.0 for reward in rewards) for rewards in groups.values()) / count,
    }


def _of_play(scope: str, episodes: Sequence[ReadyEpisode], filters: Sequence[str]) -> Columns:
    outcomes = [episode.outcome for episode in episodes]
    rewards = [float(outcome.reward) for outcome in outcomes if outcome.reward is not None]
    return {
        **_prefixed(f"reward/{scope}", statistics(rewards)),
        **_prefixed(f"turns/{scope}", statistics(outcome.num_turns for outcome in outcomes)),
        **_prefixed(f"sampled_tokens/{scope}", statistics(outcome.sampled_tokens for outcome in outcomes)),
        **_prefixed(f"environment_tokens/{scope}", statistics(outcome.environment_tokens for outcome in outcomes)),
        **_prefixed(f"solved/{scope}", solve_rates(episodes)),
        **_prefixed(f"filters/{scope}", filter_shares(episodes, filters)),
        **_prefixed(f"stops/{scope}", stop_shares(episodes)),
        **_metrics(scope, outcomes),
    }


def _of_training(scope: str, episodes: Sequence[ReadyEpisode], step: int) -> Columns:
    return {
        **_prefixed(f"advantage/{scope}", statistics(episode.advantage for episode in episodes)),
        **_prefixed(f"staleness/{scope}", statistics(episode.staleness(step) for episode in episodes)),
    }


def member_columns(scope: str, played: Sequence[ReadyEpisode], in_batch: Sequence[ReadyEpisode]) -> Columns:
    """Of each member of a multi-agent environment; none for other environments.

    Args:
        scope: the environment's name.
        played: its units, those filtered before the batch as well.
        in_batch: its units in the batch.

    Returns:
        For every member, those that do not learn as well, ``reward/<scope>/<member>``, the mean over episodes, and
        ``reward/<scope>/<member>/{mean,std,min,max}``. For every member that learns the mean over its units of
        ``turns``, ``sampled_tokens`` and, of those in the batch alone, ``advantage``: ``<name>/<scope>/<member>/mean``.
    """
    rewards: dict[str, list[float]] = defaultdict(list)
    for by_member in {episode.outcome.whole: episode.outcome.rewards for episode in played}.values():
        for member, reward in by_member.items():
            rewards[member].append(reward)
    columns: Columns = {}
    for member, values in sorted(rewards.items()):
        told = statistics(values)
        columns |= {f"reward/{scope}/{member}": told["mean"], **_prefixed(f"reward/{scope}/{member}", told)}
    for member in sorted({episode.outcome.member for episode in played if episode.outcome.member}):
        units = [episode.outcome for episode in played if episode.outcome.member == member]
        trained = [episode.advantage for episode in in_batch if episode.outcome.member == member]
        columns[f"turns/{scope}/{member}/mean"] = statistics(unit.num_turns for unit in units)["mean"]
        columns[f"sampled_tokens/{scope}/{member}/mean"] = statistics(unit.sampled_tokens for unit in units)["mean"]
        columns[f"advantage/{scope}/{member}/mean"] = statistics(trained)["mean"]
    return columns


def _prefixed(prefix: str, columns: Columns) -> Columns:
    return {f"{prefix}/{name}": value for name, value in columns.items()}


def _metrics(scope: str, outcomes: Sequence[EpisodeOutcome]) -> Columns:
    """Of what environments measured, each over the episodes that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.metrics.items():
            values[name].append(value)
    columns: Columns = {}
    for name, measured in sorted(values.items()):
        columns |= _prefixed(f"metrics/{scope}/{name}", statistics(measured))
    return columns


def filter_shares(episodes: Sequence[ReadyEpisode], filters: Sequence[str]) -> Columns:
    """Share of episodes that each filter matched, and that any enforced one took out of a component."""
    share = {name: sum(name in episode.verdict.hits for episode in episodes) / len(episodes) for name in filters}
    filtered = sum(episode.verdict.filtered for episode in episodes)
    return {**share, "is_filtered": filtered / len(episodes)}


def stop_shares(episodes: Sequence[ReadyEpisode]) -> Columns:
    """Share of episodes that ended for each reason, and of truncated ones; members' parts of one count once.

    Those that ended in an error are in no batch: ``failures/<kind>`` counts them.
    """
    played = list({episode.outcome.whole: episode.outcome for episode in episodes}.values())
    share: Columns = {
        reason: sum(outcome.stop is reason for outcome in played) / len(played)
        for reason in StopReason
        if reason is not StopReason.ERROR
    }
    return {**share, "is_truncated": sum(outcome.truncated for outcome in played) / len(played)}
