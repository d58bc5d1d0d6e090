"""Grafana's JSON of a board, by grafana-foundation-sdk."""

import json

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

from tools.dashboards.boards import Board, Mark, Plot, Unit

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_PANEL_HEIGHT, _PANEL_WIDTH = 8, 8


def to_json(board: Board) -> str:
    """The text that Grafana imports."""
    return json.dumps(build(board), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def build(board: Board) -> Dashboard:
    """Make the SDK's model of a board."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags(["echorl"])
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, query in board.chosen:
        made = made.with_variable(
            dashboard.QueryVariable(name)
            .query(query)
            .datasource(_SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
    for mark in board.marks:
        made = made.annotation(_annotation(mark))
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for plot in row.plots:
            made = made.with_panel(_panel(plot))
    return made.build()


def _annotation(mark: Mark) -> dashboard.AnnotationQuery:
    return dashboard.AnnotationQuery().name(mark.name).datasource(_SOURCE).icon_color("red").expr(mark.expr)


def _panel(plot: Plot) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(plot.title)
        .description(plot.text)
        .datasource(_SOURCE)
        .height(_PANEL_HEIGHT)
        .span(_PANEL_WIDTH)
        .unit(plot.unit)
        .line_width(1.0)
        .fill_opacity(30.0 if plot.stacked else 0.0)
        .show_points(VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)  # noqa: FBT003 - the library has it so
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if plot.stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    if plot.unit is Unit.SHARE:
        panel = panel.min(0.0)
    for place, query in enumerate(plot.queries):
        panel = panel.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + place))
            .datasource(_SOURCE)
            .range()
        )
    return panel
