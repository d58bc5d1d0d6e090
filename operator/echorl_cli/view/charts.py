"""Pictures of a page, as options of ECharts: pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from echorl_cli.records import Row
from echorl_cli.view.queries import Point

Options = dict[str, Any]

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
"""Of runs, by their numbers."""
GENERATION, TOOL, UNUSED, ABORTED = "#2563eb", "#d97706", "#94a3b8", "#dc2626"
_INK, _FAINT = "#475569", "#e2e8f0"
_FEW = 40


def colour(number: int) -> str:
    """Of a run."""
    return COLOURS[number % len(COLOURS)]


def _axis(**more: Any) -> Options:
    line = {"lineStyle": {"color": _FAINT}}
    return {"axisLine": line, "splitLine": line, "axisLabel": {"color": _INK, "fontSize": 11}, **more}


def curve(title: str, series: Mapping[int, Sequence[Point]], labels: Mapping[int, str]) -> Options:
    """One metric of several runs over steps; ``series`` and ``labels`` by the runs' numbers."""
    return {
        "animation": False,
        "title": {"text": title, "left": 8, "top": 6, "textStyle": {"fontSize": 12.5, "color": "#0f172a"}},
        "tooltip": {"trigger": "axis", "confine": True},
        "grid": {"left": 52, "right": 16, "top": 40, "bottom": 30},
        "xAxis": _axis(type="value", minInterval=1, min="dataMin", max="dataMax"),
        "yAxis": _axis(type="value", scale=True),
        "series": [
            {
                "type": "line",
                "name": labels[run],
                "data": [list(point) for point in points],
                "color": colour(run),
                "lineStyle": {"width": 1.6},
                "symbolSize": 5,
                "showSymbol": len(points) <= _FEW,
                "sampling": "lttb",
            }
            for run, points in series.items()
        ],
    }


def bars(title: str, bins: Sequence[Row]) -> Options:
    """A histogram of ``queries.histogram``."""
    names = [" to ".join(dict.fromkeys(f"{edge:.3g}" for edge in (one["low"], one["high"]))) for one in bins]
    return {
        "animation": False,
        "title": {"text": title, "left": 8, "top": 6, "textStyle": {"fontSize": 12.5, "color": "#0f172a"}},
        "tooltip": {"trigger": "axis", "confine": True},
        "grid": {"left": 44, "right": 16, "top": 40, "bottom": 30},
        "xAxis": _axis(type="category", data=names),
        "yAxis": _axis(type="value", minInterval=1),
        "series": [{"type": "bar", "name": "episodes", "data": [one["count"] for one in bins], "color": COLOURS[0]}],
    }


def swimlane(turns: Sequence[Row]) -> Options:
    """An episode over time: each turn's generation and tool. What does not train is grey, an aborted call hatched."""
    names = [turn_name(number, turn) for number, turn in enumerate(turns, start=1)]
    waits, generated, tools = [], [], []
    for turn in turns:
        start, end = seconds_of(turn, "start_s"), seconds_of(turn, "end_s")
        shade: Options = {"color": UNUSED if turn.get("unused") else GENERATION}
        if turn.get("aborted"):
            shade = {"color": ABORTED, "decal": {"symbol": "rect", "dashArrayX": [1, 0], "dashArrayY": [3, 4]}}
        waits.append(round(start, 3))
        generated.append({"value": round(max(0.0, end - start), 3), "itemStyle": shade})
        tools.append(round(seconds_of(turn, "tool_s"), 3))
    laid: Options = {"type": "bar", "stack": "time", "barWidth": 16}
    return {
        "animation": False,
        "tooltip": {"trigger": "axis", "confine": True, "axisPointer": {"type": "shadow"}},
        "grid": {"left": 190, "right": 24, "top": 10, "bottom": 40},
        "xAxis": _axis(
            type="value",
            name="seconds since the episode's start",
            nameLocation="middle",
            nameGap=26,
            nameTextStyle={"color": _INK},
        ),
        "yAxis": _axis(type="category", data=names, inverse=True),
        "series": [
            {**laid, "name": "starts at", "data": waits, "color": "transparent", "tooltip": {"show": False}},
            {**laid, "name": "generation", "data": generated, "color": GENERATION},
            {**laid, "name": "tool", "data": tools, "color": TOOL},
        ],
    }


def turn_name(number: int, turn: Row) -> str:
    """What the lane of a turn is called."""
    if turn.get("aborted"):
        return f"{number}. aborted"
    branch = f" · branch {turn['branch']}" if turn.get("branch") else ""
    return f"{number}. {turn.get('tokens', '?')} tokens{branch}" + (
        f" · {turn['unused']}" if turn.get("unused") else ""
    )


def seconds_of(turn: Row, name: str) -> float:
    """A time of a turn; 0 where there is none."""
    value = turn.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
