"""What single modules of this role count; served beside what is read at each scrape."""

from prometheus_client import Counter

from echorl_core.metric_spec import MetricSpec

DECLARED: list[MetricSpec] = []


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
    spec = MetricSpec(f"echorl_orchestrator_{name}_total", "counter", labels, text)
    DECLARED.append(spec)
    return Counter(spec.family, text, labels)


TURNS = _counter("gateway_turns", "Finished model turns.")
BRANCHES = _counter("gateway_branches", "Token branches that turns opened.")
RETRIES = _counter("episode_retries", "Tries of episodes repeated, by why.", ("environment", "kind"))
UNATTRIBUTED = _counter("echo_unattributed_episodes", "Episodes without ECHO for want of attribution.")
WORKER_DEATHS = _counter("worker_deaths", "Environment workers that died.", ("environment",))
IMPOSSIBLE_ANSWERS = _counter(
    "engine_impossible_answers", "Answers of engines with logprobs that no probability has; each puts its engine away."
)
MONITOR_WRITTEN = _counter("monitor_rows", "Rows that a monitor took: wandb, tensorboard.", ("monitor",))
MONITOR_DROPPED = _counter("monitor_rows_dropped", "Rows that a monitor never got.", ("monitor",))
MONITOR_FAILURES = _counter("monitor_failures", "Ends of a monitor's process that it was not asked for.", ("monitor",))
WORKERS_RETIRED = _counter("worker_retired", "Environment workers put away as stuck.", ("environment",))
