"""What ``echorl status`` prints: tables on a terminal, plain lines elsewhere. Pure but for rich's own drawing."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from echorl_core.names import Phase
from echorl_core.wire.goodput import INFERENCE, TRAINER, TimeState
from echorl_operator.diagnosis.durations import span
from echorl_operator.names import PodRole
from echorl_operator.status.conditions import PROBLEMS

_STYLES = {
    Phase.RUNNING: "bold green",
    Phase.SUCCEEDED: "bold green",
    Phase.FAILED: "bold red",
    Phase.SUSPENDED: "bold yellow",
    Phase.RESTARTING: "bold yellow",
}
_MIB = 2**20


def plain(told: Mapping[str, Any]) -> str:
    """Lines that a program can cut: two spaces or more between columns."""
    lines = [f"{label:<12}{value}" for label, value in rows(told)]
    lines += _section("conditions", condition_rows(told))
    lines += _section("timeline", timeline_rows(told))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def drawn(told: Mapping[str, Any]) -> str:
    """Draw a run's state for a terminal."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True)
    table = Table.grid(padding=(0, 2))
    style = _STYLES.get(told["phase"], "bold")
    for label, value in rows(told):
        table.add_row(Text(label, style="dim"), Text(value, style=style if label == "phase" else ""))
    console.print(table)
    for title, lines in (("conditions", condition_rows(told)), ("timeline", timeline_rows(told))):
        if lines:
            console.print(Text(f"\n{title}", style="bold"))
            console.print(_grid(lines))
    return out.getvalue()


def rows(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and value of everything that is one line."""
    lines = [
        ("run", f"{told['name']} in {told['namespace']}, {_span(told['ageSeconds'])} old"),
        ("phase", _phase(told)),
        ("message", told["message"] or "-"),
        ("attempt", _attempt(told)),
        ("step", _step(told)),
        ("reward", told["reward"] or "-"),
        ("policy", _policy(told["policy"] or {})),
        ("checkpoint", _checkpoint(told["checkpoint"])),
        ("roles", _roles(told["roles"])),
        ("restarts", _restarts(told)),
    ]
    if told["notices"]:
        lines.append(("notices", f"{told['notices']}; {told['lastNotice']}"))
    if told["sandboxes"]:
        lines.insert(-1, ("sandboxes", _sandboxes(told["sandboxes"])))
    if told["autoscale"]:
        lines.append(("autoscale", told["autoscale"]))
    if told["goodput"]:
        lines.append(("goodput", _goodput(told["goodput"])))
    if told["notice"]:
        lines.insert(1, ("notice", told["notice"]))
    return lines


def condition_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Type, status, reason and message; a problem that is over is left out."""
    return [
        (condition["type"], condition["status"], condition.get("reason", ""), condition.get("message", ""))
        for condition in told["conditions"]
        if condition["type"] not in PROBLEMS or condition["status"] == "True"
    ]


def timeline_rows(told: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """When, phase, attempt, how long and why."""
    return [
        (
            entry["since"],
            entry["phase"],
            f"attempt {entry['attempt']}",
            "-" if entry["seconds"] is None else span(entry["seconds"]),
            entry.get("reason", ""),
        )
        for entry in told["timeline"]
    ]


def _section(title: str, lines: list[tuple[str, ...]]) -> Iterator[str]:
    if not lines:
        return
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    yield ""
    yield title
    for row in lines:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))


def _grid(lines: list[tuple[str, ...]]) -> Table:
    table = Table.grid(padding=(0, 2))
    for row in lines:
        table.add_row(Text(" "), *(Text(cell) for cell in row))
    return table


def _phase(told: Mapping[str, Any]) -> str:
    entries = told["timeline"]
    seconds = entries[-1]["seconds"] if entries else None
    return told["phase"] if seconds is None else f"{told['phase']} since {span(seconds)}"


def _attempt(told: Mapping[str, Any]) -> str:
    if not told["attempt"]:
        return "-"
    resumed = told["resumeStep"]
    return str(told["attempt"]) if resumed is None else f"{told['attempt']}, from step {resumed}"


def _step(told: Mapping[str, Any]) -> str:
    step, wanted = told["step"], told["maxSteps"]
    done = "-" if step is None else str(step)
    return done if wanted is None else f"{done} / {wanted}"


def _policy(policy: Mapping[str, Any]) -> str:
    served, stale = policy.get("served"), policy.get("stalenessMax")
    parts = [f"version {policy['trained']} trained"] if policy.get("trained") is not None else []
    if served:
        low, high = served["min"], served["max"]
        parts.append(f"{low} served" if low == high else f"{low} to {high} served")
    if stale is not None:
        parts.append(f"samples at most {stale} old")
    return ", ".join(parts) or "-"


def _checkpoint(checkpoint: Mapping[str, Any] | None) -> str:
    if checkpoint is None:
        return "-"
    age, size = checkpoint["ageSeconds"], checkpoint.get("sizeBytes", 0) / _MIB
    parts = [f"step {checkpoint['step']}"]
    if age is not None:
        parts.append(f"{span(age)} ago")
    parts.append(f"{size / 1024:.1f} GiB" if size >= 1024 else f"{size:.1f} MiB")
    if checkpoint.get("path"):
        parts.append(checkpoint["path"])
    return ", ".join(parts)


def _roles(roles: Mapping[str, Any]) -> str:
    by_role = ((str(role), roles.get(str(role))) for role in PodRole)
    return ", ".join(f"{role} {counts['ready']}/{counts['desired']}" for role, counts in by_role if counts) or "-"


def _sandboxes(told: Mapping[str, Any]) -> str:
    parts = [f"{told['alive']} alive", f"{told['starting']} starting"]
    parts += [f"{told['warm']} warm, {told['claimed']} claimed"] if "warm" in told else []
    parts += [f"{waits['count']} waiting ({waits['reason']})" for waits in told.get("waiting", ())]
    parts += [f"{count} lost ({loss})" for loss, count in sorted((told.get("lost") or {}).items())]
    return ", ".join(parts)


def _goodput(told: Mapping[str, Any]) -> str:
    """The useful share, and the three largest of the others; what is undecided is left out."""
    seconds: Counter[str] = Counter()
    for key, count in told.items():
        role, _, state = key.partition("/")
        if role in (TRAINER, INFERENCE) and state != TimeState.UNDECIDED:
            seconds[state] += count
    whole = seconds.total()
    if not whole:
        return "-"
    others = [(state, count) for state, count in seconds.most_common() if state != TimeState.USEFUL]
    parts = [f"{seconds[TimeState.USEFUL] / whole:.0%} of GPU time useful"]
    return ", ".join([*parts, *(f"{state} {count / whole:.0%}" for state, count in others[:3])])


def _restarts(told: Mapping[str, Any]) -> str:
    causes = ", ".join(f"{role} {count}" for role, count in sorted(told["restartsByRole"].items()) if count)
    return f"{told['restarts']} ({causes})" if causes else str(told["restarts"])


def _span(seconds: int | None) -> str:
    return "?" if seconds is None else span(seconds)
