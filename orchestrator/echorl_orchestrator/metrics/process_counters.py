"""What single modules of this role count; served beside what is read at each scrape."""

from prometheus_client import Counter, Histogram

from echorl_core.metric_spec import MetricSpec

DECLARED: list[MetricSpec] = []


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    spec = MetricSpec(f"echorl_orchestrator_{name}_total", "counter", labels, text)
    DECLARED.append(spec)
    return Counter(spec.family, text, labels)


def _histogram(name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
    one = MetricSpec(f"echorl_orchestrator_{name}", "histogram", labels, text)
    DECLARED.append(one)
    return Histogram(one.family, text, labels, buckets=buckets)


TURNS = _counter("gateway_turns", "Finished model turns.")
BRANCHES = _counter("gateway_branches", "Token branches that turns opened.")
RETRIES = _counter("episode_retries", "Tries of episodes repeated, by why.", ("environment", "kind"))
UNATTRIBUTED = _counter("echo_unattributed_episodes", "Episodes without ECHO for want of attribution.")
WORKER_DEATHS = _counter("worker_deaths", "Environment workers that died.", ("environment",))
IMPOSSIBLE_ANSWERS = _counter(
    "engine_impossible_answers", "Answers of engines with logprobs that no probability has; each puts its engine away."
)
_BROKEN = "when an engine's stream broke off, by why: lost, stalled, quarantined, aborted, refused"
TURN_TOKENS_KEPT = _counter(
    "turn_tokens_kept", f"Received tokens that a turn went on from at another engine {_BROKEN}.", ("cause",)
)
TURN_TOKENS_LOST = _counter(
    "turn_tokens_lost",
    f"Received tokens that were dropped {_BROKEN}; abandoned: of turns that no engine went on with.",
    ("cause",),
)
JOURNAL_KEPT = _counter(
    "turn_journal_kept_tokens", "Tokens of an orchestrator's process before that episodes were answered again."
)
JOURNAL_DROPPED = _counter(
    "turn_journal_dropped_tokens",
    "Tokens of an orchestrator's process before that no episode was answered, by why: prompt (another one was asked "
    "for), stale (too old for every batch to come), unasked.",
    ("cause",),
)
JOURNAL_ENDED = _counter(
    "turn_journal_ends", "Times that the turn journal turned itself off, by why: volume, size.", ("cause",)
)
MONITOR_WRITTEN = _counter("monitor_rows", "Rows that a monitor took: wandb, tensorboard.", ("monitor",))
MONITOR_DROPPED = _counter("monitor_rows_dropped", "Rows that a monitor never got.", ("monitor",))
MONITOR_FAILURES = _counter("monitor_failures", "Ends of a monitor's process that it was not asked for.", ("monitor",))
WORKERS_RETIRED = _counter("worker_retired", "Environment workers put away as stuck.", ("environment",))
SANDBOXES_STARTED = _counter("sandboxes_started", "Sandboxes that were ready.", ("environment",))
SANDBOXES_DESTROYED = _counter("sandboxes_destroyed", "Sandboxes that an episode or its end ended.", ("environment",))
SANDBOXES_FAILED = _counter(
    "sandboxes_failed",
    "Sandboxes that could not be made, or were lost, by why: refused, image, start, evicted, lost, expired, overused.",
    ("environment", "reason"),
)
SANDBOX_START = _histogram(
    "sandbox_start_seconds",
    "From asking for a sandbox to having it, its image included.",
    (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
    ("environment",),
)
