"""Plots of a report as inline SVG, drawn by matplotlib without a display."""

import io
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Series = tuple[Sequence[float], Sequence[float | None]]
"""x and y of one line; None leaves a gap."""

_LONGEST_NAME = 80
_LARGEST_DRAWN = 1e300
"""Beyond it the arithmetic of matplotlib's ticks overflows."""
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2", "#be185d")


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _shown(text: str) -> str:
    """A name from a record as fonts can draw it."""
    plain = text.encode(errors="replace").decode().replace("$", r"\$")
    return plain if len(plain) <= _LONGEST_NAME else f"{plain[: _LONGEST_NAME - 3]}..."


def _drawn(value: object) -> float:
    """A number of a record as an axis can take it; anything else leaves a gap."""
    return float(value) if isinstance(value, (int, float)) and abs(value) <= _LARGEST_DRAWN else math.nan


def lines(
    title: str,
    series: Mapping[str, Series],
    *,
    y_label: str,
    x_label: str = "step",
    references: Mapping[str, float] | None = None,
    markers: Sequence[float] = (),
) -> str:
    """Line plot; ``references`` are horizontal lines with a name, ``markers`` vertical ones (restarts)."""
    figure = Figure(figsize=(6.2, 3.1), layout="constrained")
    axes = figure.subplots()
    for colour, (name, (xs, ys)) in zip(_cycle(), series.items(), strict=False):
        axes.plot(
            [_drawn(x) for x in xs],
            [_drawn(y) for y in ys],
            label=_shown(name),
            color=colour,
            linewidth=1.6,
            marker="o" if len(xs) < 12 else None,
            markersize=3,
        )
    for style, (name, value) in zip(("--", ":", "-."), (references or {}).items(), strict=False):
        axes.axhline(
            _drawn(value), linestyle=style, color="#6b7280", linewidth=1, label=_shown(f"{name} ({value:.3g})")
        )
    for x in markers:
        axes.axvline(_drawn(x), color="#dc2626", linewidth=0.8, alpha=0.5)
    _finish(axes, title, x_label, y_label, legend=len(series) + len(references or {}) > 1)
    return _svg(figure)


def stacked(title: str, xs: Sequence[float], parts: Mapping[str, Sequence[float]], *, y_label: str) -> str:
    """Stacked areas, for where each step's time went."""
    figure = Figure(figsize=(6.2, 3.1), layout="constrained")
    axes = figure.subplots()
    if parts and xs:
        rows = [[_drawn(y) for y in ys] for ys in parts.values()]
        axes.stackplot([_drawn(x) for x in xs], *rows, labels=list(parts), colors=COLOURS, alpha=0.85)
    _finish(axes, title, "step", y_label, legend=bool(parts and xs))
    return _svg(figure)


def swimlane(title: str, turns: Sequence[Mapping[str, object]]) -> str:
    """One episode over time: each turn's generation and tool time; aborted generations are hatched."""
    figure = Figure(figsize=(8.4, 0.5 + 0.36 * max(1, len(turns))), layout="constrained")
    axes = figure.subplots()
    for row, turn in enumerate(turns):
        start, end, tool = (_drawn(turn.get(name, 0.0)) for name in ("start_s", "end_s", "tool_s"))
        aborted = bool(turn.get("aborted"))
        axes.barh(row, end - start, left=start, color=COLOURS[0], hatch="//" if aborted else None, edgecolor="white")
        axes.barh(row, tool, left=end, color=COLOURS[3])
        axes.text(end + tool, row, f" {turn.get('tokens', '?')} tokens", va="center", fontsize=7)
    axes.set_yticks(range(len(turns)), [f"turn {index + 1}" for index in range(len(turns))], fontsize=8)
    axes.invert_yaxis()
    _finish(axes, title, "seconds since the episode's start", "", legend=False)
    return _svg(figure)


def _cycle() -> Sequence[str]:
    return COLOURS * 8


def _finish(axes: Axes, title: str, x_label: str, y_label: str, *, legend: bool) -> None:
    axes.set_title(_shown(title), fontsize=10, loc="left")
    axes.set_xlabel(x_label, fontsize=8)
    axes.set_ylabel(y_label, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, alpha=0.25)
    if legend:
        axes.legend(fontsize=7, frameon=False)
