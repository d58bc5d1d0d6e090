"""The chart's alerts, as tests look at them."""

import re
from pathlib import Path
from typing import Any

import yaml

from tools.dashboards.answers import Prometheus, Span

FILES = sorted((Path(__file__).resolve().parents[4] / "charts" / "echorl" / "rules").glob("*.yaml"))
_SELECTOR = re.compile(r"\bechorl_(?:orchestrator|trainer|operator)_[a-z_]+(?:\{[^}]*\})?")


def alert_rules() -> dict[str, dict[str, Any]]:
    """Every rule by its alert."""
    groups = [group for file in FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def selectors(expr: str) -> list[str]:
    """What an expression picks: metrics with their matchers, without windows."""
    return _SELECTOR.findall(expr)


def picks_nothing(prometheus: Prometheus, span: Span, roles: tuple[str, ...]) -> list[str]:
    """Selectors of alerts on these roles that no series has met, after every expression was evaluated.

    Raises:
        ValueError: Prometheus cannot evaluate one.
    """
    missing = []
    for alert, rule in alert_rules().items():
        prometheus.ask("query", query=rule["expr"], time=span.end)
        for selector in selectors(rule["expr"]):
            wanted = any(selector.startswith(f"echorl_{role}_") for role in roles)
            if wanted and not prometheus.lines(f"count ({selector})", "", span):
                missing.append(f"{alert}: {selector}")
    return missing
