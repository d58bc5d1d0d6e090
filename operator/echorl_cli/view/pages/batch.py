"""One step's batch: what was sampled for it, filtered before it or failed, and what the step says of itself."""

from html import escape
from typing import Any

import duckdb
from nicegui import ui

from echorl_cli.records import Row
from echorl_cli.view import charts, queries
from echorl_cli.view.pages.frame import follow, frame
from echorl_cli.view.pages.table import EpisodeTable
from echorl_cli.view.queries import Wanted
from echorl_cli.view.watch import Watch

_MOST = 500
_COUNTS = ("failures/", "dropped/", "filters/all/", "stops/all/")
"""Beginnings of metrics that tell why episodes are not in the batch, or how they ended."""


class BatchPage:
    """Holds which step one visitor looks at."""

    def __init__(self, watch: Watch, run: int, step: int | None) -> None:
        """``step``: None: the newest, and on to newer ones."""
        self._watch, self._run, self._step = watch, run, step

    async def build(self) -> None:
        """Make the page."""
        with frame(self._watch, "/batch"):
            with ui.row().classes("card filters"):
                runs = {one.number: one.label for one in self._watch.runs}
                ui.select(runs, value=self._run, label="Run", on_change=self._other_run).props(
                    "dense outlined"
                ).classes("wide")
                ui.button(icon="chevron_left", on_click=lambda: self._move(-1)).props("flat dense")
                self._number = (
                    ui.number("Step", value=self._step, min=1, precision=0, on_change=self._other_step)
                    .props("dense outlined debounce=300")
                    .classes("narrow by-step")
                )
                ui.button(icon="chevron_right", on_click=lambda: self._move(1)).props("flat dense")
                self._told = ui.label().classes("told")
            with ui.element("div").classes("charts"):
                self._rewards = ui.echart(charts.bars("Rewards", [])).classes("chart card")
                self._advantages = ui.echart(charts.bars("Advantages of the batch", [])).classes("chart card")
                self._counts = ui.html("", sanitize=True).classes("card counts")
            self._table = EpisodeTable(self._watch, without=["run", "step"])
            with ui.expansion("All numbers of the step").classes("card numbers"):
                self._metrics = ui.aggrid(
                    {
                        "columnDefs": [
                            {"field": "metric", "flex": 3, "filter": True, "floatingFilter": True},
                            {"field": "value", "flex": 1},
                        ],
                        "rowData": [],
                        "rowHeight": 26,
                    }
                ).classes("metrics-table")
        follow(self._watch, self._show)
        await self._show()

    async def _other_run(self, event: Any) -> None:
        self._run, self._step = event.value, None
        await self._show()

    async def _other_step(self, event: Any) -> None:
        if event.value and int(event.value) != self._shown:
            self._step = int(event.value)
            await self._show()

    async def _move(self, by: int) -> None:
        self._step = max(1, self._shown + by)
        await self._show()

    async def _show(self) -> None:
        last = (await self._watch.ask(queries.last_steps)).get(self._run, {}).get("step", 0)
        self._shown = last if self._step is None else self._step
        self._number.set_value(self._shown or None)
        rows, rewards, advantages, metrics = await self._watch.ask(_batch, self._run, self._shown)
        inside, failed = (sum(is_so(row) for row in rows) for is_so in (_inside, _failed))
        known = f"of {last:,}" if self._step is not None else "the newest, live"
        self._told.set_text(
            f"{known} · {inside} episodes to look at, {len(rows) - inside - failed} filtered before, {failed} failed"
        )
        for chart, options in (
            (self._rewards, charts.bars("Rewards", rewards)),
            (self._advantages, charts.bars("Advantages of the batch", advantages)),
        ):
            chart.options.clear()
            chart.options.update(options)
        self._counts.set_content(_counts(metrics))
        self._table.show(rows)
        self._metrics.options["rowData"] = [
            {"metric": name, "value": value} for name, value in metrics.items() if isinstance(value, int | float)
        ]


def _inside(row: Row) -> bool:
    return row["in_batch"] is not False


def _failed(row: Row) -> bool:
    return row["error_class"] is not None


def _batch(tables: duckdb.DuckDBPyConnection, run: int, step: int) -> tuple[list[Row], list[Row], list[Row], Row]:
    wanted = Wanted(runs=(run,), kind="train", step_from=step, step_to=step)
    batch = Wanted(runs=(run,), kind="train", step_from=step, step_to=step, in_batch=True)
    return (
        queries.episodes(tables, wanted, order="best", limit=_MOST),
        queries.histogram(tables, wanted, "reward"),
        queries.histogram(tables, batch, "advantage"),
        queries.step_metrics(tables, run, step),
    )


def _counts(metrics: Row) -> str:
    """Failures by kind, and what else kept episodes out, as a table."""
    found = [
        (name, value)
        for name, value in metrics.items()
        if name.startswith(_COUNTS) and isinstance(value, int | float) and value
    ]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{value:.4g}</td></tr>" for name, value in sorted(found))
    empty = '<p class="faint">No episode failed, was dropped or filtered.</p>'
    return f"<h3>Failed, dropped, filtered, ended</h3><table>{rows}</table>" + ("" if rows else empty)
