"""PromQL over the metrics of one run."""

from tools.dashboards.boards import Query

ORCHESTRATOR, TRAINER, BROKER = "echorl_orchestrator", "echorl_trainer", "echorl_broker"
OF_RUN = '{namespace="$namespace",run="$run"}'
WINDOW = "[$__rate_interval]"


def value(name: str, by: str = "", role: str = ORCHESTRATOR) -> str:
    """Newest value; the maximum, because ranks tell the same and a restart shows two pods for a moment."""
    return f"max{f' by ({by})' if by else ''} ({role}_{name}{OF_RUN})"


def rate(name: str, by: str = "", role: str = ORCHESTRATOR, how: str = "max") -> str:
    """Growth of a counter a second; ``how`` adds up what tells it."""
    return f"{how}{f' by ({by})' if by else ''} (rate({role}_{name}{OF_RUN}{WINDOW}))"


def quantile(part: float, name: str, role: str = ORCHESTRATOR, of: str = "") -> Query:
    """The value of a histogram that ``part`` of all are below, from 0 to 1; ``of`` goes before it in the legend."""
    spread = rate(f"{name}_bucket", "le", role, how="sum")
    return Query(f"histogram_quantile({part}, {spread})", f"{of}{part * 100:.0f} %")


def mean(name: str, by: str) -> str:
    """The mean of a histogram or summary."""
    return f"{rate(f'{name}_sum', by, how='sum')} / {rate(f'{name}_count', by, how='sum')}"
