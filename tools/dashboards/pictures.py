"""Draws what a dashboard's panels hold, from Prometheus' answers; no Grafana is involved.

python -m tools.dashboards.pictures URL DASHBOARD.json PICTURE.png START END [NAME=VALUE...]
"""

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from tools.dashboards.answers import Prometheus, Span, marks, panels

COLUMNS = 3
POINTS = 240


def draw(prometheus: Prometheus, dashboard: Path, picture: Path, span: Span, chosen: Mapping[str, str]) -> None:
    """One picture with all panels, in their order; a panel without data says so."""
    drawn = list(panels(dashboard, chosen))
    rows = -(-len(drawn) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(6 * COLUMNS, 3 * rows), squeeze=False, layout="constrained")
    moments = [
        when
        for mark in marks(dashboard, chosen)
        for line in prometheus.lines(mark.expr, mark.legend, span)
        for when, _ in line.points[:1]
    ]
    for axis, panel in zip(axes.flat, drawn, strict=False):
        lines = [line for target in panel.targets for line in prometheus.lines(target.expr, target.legend, span)]
        for line in lines:
            seconds = [when - span.start for when, _ in line.points]
            style = "." if len(line.points) == 1 else "-"
            axis.plot(seconds, [value for _, value in line.points], style, linewidth=1, label=line.name)
        for moment in moments:
            axis.axvline(moment - span.start, color="red", linewidth=0.8, linestyle="--")
        unit = panel.unit.removeprefix("suffix:").strip()
        axis.set_title(f"{panel.title} [{ {'percentunit': 'share', 'none': '1'}.get(unit, unit) }]", fontsize=10)
        axis.set_xlim(0, span.end - span.start)
        axis.tick_params(labelsize=7)
        if lines:
            axis.legend(fontsize=6, loc="best")
        else:
            axis.text(0.5, 0.5, "no data", transform=axis.transAxes, ha="center", color="grey")
    for axis in axes.flat[len(drawn) :]:
        axis.remove()
    began = datetime.fromtimestamp(span.start, UTC)
    figure.suptitle(f"{dashboard.stem}: seconds since {began:%Y-%m-%d %H:%M:%S} UTC", fontsize=11)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=70)
    plt.close(figure)


def main(arguments: list[str]) -> None:
    """Command line."""
    url, dashboard, picture, start, end, *pairs = arguments
    chosen = dict(pair.split("=", 1) for pair in pairs)
    span = Span(float(start), float(end), max(1.0, (float(end) - float(start)) / POINTS))
    draw(Prometheus(url), Path(dashboard), Path(picture), span, chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
