"""``report.html``: curves of a run and episodes to read, one file without outside references."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from jinja2 import Environment, PackageLoader

from echorl_cli.records import Row, RunRecords
from echorl_cli.report import figures
from echorl_cli.report.summary import column, present

EPISODES_SHOWN = 12


def plots(records: RunRecords) -> list[str]:
    """The report's figures as SVG."""
    steps = records.steps
    xs = [float(row["step"]) for row in steps]
    restarts = _restart_steps(steps)

    def of(*names: str) -> dict[str, figures.Series]:
        return {name: (xs, column(steps, name)) for name in names if present(column(steps, name))}

    return [
        figures.lines("Reward of training episodes", of("reward/all/mean"), y_label="mean reward", markers=restarts),
        figures.lines("Held-out reward", _evals(records, "reward"), y_label="mean reward"),
        figures.lines(
            "Env-token NLL of training episodes", of("env_nll/all"), y_label="nats per token", markers=restarts
        ),
        figures.lines(
            "Env-token NLL of held-out episodes",
            _evals(records, "env_nll"),
            y_label="nats per token",
            references={
                name.removesuffix("_nats").replace("_", " "): value
                for name, value in records.baselines.items()
                if name.endswith("_nats")
            },
        ),
        figures.lines("Staleness", of("staleness/all/mean", "staleness/all/max"), y_label="policy versions"),
        figures.lines(
            "Throughput", of("rate/sampled_tokens_per_s", "rate/trained_tokens_per_s"), y_label="tokens per s"
        ),
        _time_split(xs, steps),
        figures.lines("Entropy of actions", of("entropy/all"), y_label="nats per token"),
    ]


def _evals(records: RunRecords, name: str) -> dict[str, figures.Series]:
    environments = dict.fromkeys(str(row.get("environment")) for row in records.evals)
    series: dict[str, figures.Series] = {}
    for environment in environments:
        rows = [row for row in records.evals if str(row.get("environment")) == environment]
        series[environment] = ([float(row["step"]) for row in rows], column(rows, name))
    return series


def _restart_steps(steps: list[Row]) -> list[float]:
    return [float(row["step"]) - 0.5 for before, row in pairwise(steps) if row["attempt"] != before["attempt"]]


def _time_split(xs: list[float], steps: list[Row]) -> str:
    names = ("wait_batch", "forward_backward", "optimizer", "publish")
    parts = {name: [value or 0.0 for value in column(steps, f"seconds/{name}")] for name in names}
    return figures.stacked("Where the trainer's time goes", xs, parts, y_label="seconds per step")


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"


def _shown(message: Mapping[str, Any]) -> str:
    parts = [str(message.get("content") or "")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else call
        if not isinstance(function, dict):
            parts.append(f"→ {function}")
            continue
        arguments = function.get("arguments")
        parts.append(f"→ {function.get('name')} {arguments if isinstance(arguments, str) else json.dumps(arguments)}")
    return "\n".join(part for part in parts if part)


def _sample(episodes: list[Row]) -> list[Row]:
    """A few episodes of the run's start, middle and end."""
    if len(episodes) <= EPISODES_SHOWN:
        return episodes[::-1]
    stride = (len(episodes) - 1) / (EPISODES_SHOWN - 1)
    return [episodes[round(index * stride)] for index in range(EPISODES_SHOWN)][::-1]


def _figures(figures_of_run: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Name and value of what the page's table shows; first and last of what was evaluated."""
    rows: list[tuple[str, Any]] = []
    for key, value in figures_of_run.items():
        if key == "eval":
            for environment, table in value.items():
                for name in ("reward", "env_nll"):
                    found = present(table[name])
                    shown = f"{_number(found[0])} → {_number(found[-1])}" if found else "-"
                    rows.append((f"{environment} {name}", shown))
        elif key == "baselines":
            rows.extend((name, _number(one)) for name, one in value.items())
        elif key in {"evals_skipped", "exports"}:
            if value:
                rows.append((key, ", ".join(value)))
        elif key != "policy_versions":
            rows.append((key, _number(value) if isinstance(value, float) or value is None else value))
    return rows


def render(name: str, records: RunRecords, figures_of_run: Mapping[str, Any]) -> str:
    """The page as text."""
    environment = Environment(loader=PackageLoader("echorl_cli.report", "."), autoescape=True)
    environment.filters |= {"number": _number, "shown": _shown}
    return environment.get_template("page.html").render(
        name=name,
        phase=records.supervisor.get("phase", ""),
        note=records.supervisor.get("message"),
        figures=figures_of_run,
        plots=plots(records),
        rows=_figures(figures_of_run),
        timeline=records.supervisor.get("timeline", []),
        episodes=_sample(records.episodes),
    )
