"""Episodes as a table; a click opens one."""

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from echorl_cli.records import Row
from echorl_cli.view.pages.frame import address
from echorl_cli.view.watch import Watch

_GOOD = {"good": "x > 0", "bad": "x <= 0"}


def _column(field: str, title: str = "", *, flex: int = 1, least: int = 76, **more: Any) -> dict[str, Any]:
    return {"field": field, "headerName": title or field, "flex": flex, "minWidth": least, **more}


_COLUMNS: tuple[dict[str, Any], ...] = (
    _column("run", flex=2, least=110),
    _column("step", least=70),
    _column("episode", flex=3, least=150, cellClass="link"),
    _column("environment", flex=2, least=112),
    _column("task_key", "task", flex=2, least=100),
    _column("reward", least=84, cellClassRules=_GOOD),
    _column("advantage", least=100),
    _column("stop", "ended", flex=2, least=100, cellClassRules={"odd": "x != 'terminated'"}),
    _column("error_kind", "failed by", flex=2, least=110, cellClassRules={"odd": "x"}),
    _column("in_batch", "in batch", least=88),
    _column("filters", flex=2, least=90),
    _column("turns", least=70),
    _column("sampled_tokens", "tokens", least=82),
    _column("branches", least=92),
    _column("seconds", "s", least=66),
)
_SAID = {True: "yes", False: "no", None: ""}


class EpisodeTable:
    """AG Grid with rows of ``queries.episodes``."""

    def __init__(self, watch: Watch, *, without: Sequence[str] = ()) -> None:
        """``without``: columns that the page says elsewhere."""
        self._labels = {one.number: one.label for one in watch.runs}
        left = {*without, *(["run"] if len(watch.runs) == 1 else [])}
        options = {
            "columnDefs": [one for one in _COLUMNS if one["field"] not in left],
            "defaultColDef": {"sortable": False, "resizable": True, "suppressMovable": True},
            "rowData": [],
            "rowHeight": 30,
            "headerHeight": 32,
            "domLayout": "autoHeight",
            "overlayNoRowsTemplate": "No episode is like that.",
            "suppressCellFocus": True,
        }
        self._grid = ui.aggrid(options).classes("table").on("cellClicked", self._open, ["data"])
        self._rows: list[Row] = []

    def show(self, rows: Sequence[Row]) -> None:
        """Have these rows in the table."""
        if list(rows) == self._rows:
            return
        self._rows = list(rows)
        self._grid.options["rowData"] = [self._shown(row) for row in rows]

    def _shown(self, row: Row) -> Row:
        rounded = {name: float(f"{value:.4g}") for name, value in row.items() if isinstance(value, float)}
        said = {"run": self._labels[row["run"]], "number": row["run"], "in_batch": _SAID[row["in_batch"]]}
        return {**row, **rounded, **said}

    def _open(self, event: Any) -> None:
        row = event.args["data"]
        keys = ("kind", "attempt", "step", "episode")
        ui.navigate.to(address("/episode", run=row["number"], **{key: row[key] for key in keys}))
