"""The dashboard of the operator: runs and GPUs, and whether the operator itself is well."""

from tools.dashboards.boards import Board, Plot, Query, Row, Unit

_P = "echorl_operator"
_WINDOW = "[$__rate_interval]"


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({_P}_{name}{_WINDOW}))"


def _quantiles(name: str, window: str = _WINDOW) -> tuple[Query, Query]:
    spread = f"sum by (le) (rate({_P}_{name}_bucket{window}))"
    return (
        Query(f"histogram_quantile(0.5, {spread})", "50 %"),
        Query(f"histogram_quantile(0.99, {spread})", "99 %"),
    )


_RUNS = Row(
    "Runs",
    (
        Plot(
            "Runs by phase",
            Unit.NONE,
            "As the leader sees them.",
            (Query(f"sum by (phase) ({_P}_runs)", "{{phase}}"),),
            stacked=True,
        ),
        Plot(
            "GPUs by what they do",
            Unit.GPUS,
            "GPU-seconds a second. What is not useful costs the same.",
            (Query(_rate("gpu_seconds_total", "state"), "{{state}}"),),
            stacked=True,
        ),
        Plot(
            "Engines by autoscaling",
            Unit.NONE,
            "That it wants; runs that somebody else scales are left out.",
            (Query(f"{_P}_autoscaled_engines", "{{namespace}}/{{run}}"),),
        ),
        Plot(
            "Failed runs by reason",
            Unit.NONE,
            "That are still there.",
            (Query(f"sum by (reason) ({_P}_failed_runs)", "{{reason}}"),),
        ),
        Plot(
            "Restarts",
            Unit.NONE,
            "Since the leader began, by role and cause.",
            (Query(f"sum by (role, cause) ({_P}_restarts_total) > 0", "{{role}}: {{cause}}"),),
        ),
        Plot(
            "Age of newest checkpoints",
            Unit.SECONDS,
            "The five oldest.",
            (Query(f"topk(5, {_P}_checkpoint_age_seconds)", "{{namespace}}/{{run}}"),),
        ),
        Plot(
            "From creation to the first step",
            Unit.SECONDS,
            "Of runs that made it in the last day.",
            _quantiles("first_step_seconds", "[1d]"),
        ),
        Plot(
            "Steps lost by a restart",
            Unit.STEPS,
            "Of restarts in the last day.",
            _quantiles("lost_steps", "[1d]"),
        ),
    ),
)

_RECONCILE = Row(
    "Reconcile and queue",
    (
        Plot(
            "Passes",
            Unit.A_SECOND,
            "Over runs, by result.",
            (Query(_rate("reconciles_total", "result"), "{{result}}"),),
        ),
        Plot(
            "Length of a pass",
            Unit.SECONDS,
            "And of the one that runs longest now.",
            (
                *_quantiles("reconcile_duration_seconds"),
                Query(f"max ({_P}_reconcile_longest_seconds)", "running longest"),
            ),
        ),
        Plot(
            "Queue",
            Unit.NONE,
            "Runs that are due, and that are due later.",
            (
                Query(f"sum ({_P}_queue_depth)", "due"),
                Query(f"sum ({_P}_queue_delayed)", "later"),
            ),
        ),
        Plot(
            "Wait in the queue",
            Unit.SECONDS,
            "From due to worked on, and of the run that waits longest now.",
            (
                *_quantiles("queue_wait_seconds"),
                Query(f"max ({_P}_queue_oldest_seconds)", "waiting longest"),
            ),
        ),
        Plot(
            "Orchestrators followed",
            Unit.NONE,
            "By long polls.",
            (Query(f"sum ({_P}_orchestrators_followed)", "followed"),),
        ),
        Plot(
            "Answers of orchestrators",
            Unit.A_SECOND,
            "By result.",
            (Query(_rate("orchestrator_polls_total", "result"), "{{result}}"),),
        ),
    ),
)

_API = Row(
    "API server and watches",
    (
        Plot(
            "Calls",
            Unit.A_SECOND,
            "By verb and code.",
            (Query(_rate("api_requests_total", "verb, code"), "{{verb}} {{code}}"),),
        ),
        Plot(
            "Length of a call",
            Unit.SECONDS,
            "Until the whole reply was read.",
            _quantiles("api_request_duration_seconds"),
        ),
        Plot(
            "Breaker",
            Unit.NONE,
            "1 while the API server does not answer.",
            (Query(f"max ({_P}_api_breaker_open)", "open"),),
        ),
        Plot(
            "Silence of watches",
            Unit.SECONDS,
            "Since a stream heard anything; up to two minutes where a kind of object does not change.",
            (Query(f"max by (resource) ({_P}_watch_age_seconds)", "{{resource}}"),),
        ),
        Plot(
            "Watch events",
            Unit.A_SECOND,
            "By kind of object.",
            (Query(_rate("watch_events_total", "resource"), "{{resource}}"),),
        ),
        Plot(
            "Lists",
            Unit.A_SECOND,
            "That watches needed, by why.",
            (Query(_rate("watch_relists_total", "resource, reason"), "{{resource}}: {{reason}}"),),
        ),
        Plot(
            "Leaders",
            Unit.NONE,
            "1 unless it is being handed over.",
            (Query(f"sum ({_P}_leader)", "leaders"),),
        ),
        Plot(
            "Cached objects",
            Unit.NONE,
            "Held by each process.",
            (Query(f"max by (resource) ({_P}_cached_objects)", "{{resource}}"),),
        ),
    ),
)

OPERATOR = Board(
    uid="echorl-operator",
    title="EchoRL / Operator",
    text="Runs and GPUs of all namespaces that it looks after, and whether the operator itself is well.",
    rows=(_RUNS, _RECONCILE, _API),
)
