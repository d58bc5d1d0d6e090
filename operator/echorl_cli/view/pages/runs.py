"""The first page: runs side by side, as curves."""

from collections.abc import Sequence
from typing import Any

import duckdb
from nicegui import ui

from echorl_cli.records import Row
from echorl_cli.view import charts, queries
from echorl_cli.view.pages.frame import address, follow, frame
from echorl_cli.view.watch import Watch

_FIRST = (
    "reward/all/mean",
    "entropy/all",
    "env_nll/all",
    "staleness/all/mean",
    "rate/trained_tokens_per_s",
    "grad_norm",
)
EVAL = "eval reward · "
"""Before the name of an eval's environment, among the metrics."""


class RunsPage:
    """Holds what one visitor chose."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._shown = {one.number for one in watch.runs}
        self._charts: dict[str, ui.echart] = {}
        self._told: dict[int, ui.label] = {}

    async def build(self) -> None:
        """Make the page."""
        names, evals = await self._watch.ask(_names)
        known = [*evals, *names]
        self._chosen = [*evals, *(name for name in _FIRST if name in names)] or names[:6]
        with frame(self._watch, "/"):
            with ui.row().classes("cards"):
                for one in self._watch.runs:
                    self._card(one.number)
            self._select = (
                ui.select(
                    known, multiple=True, value=self._chosen, label="Metrics", with_input=True, on_change=self._choose
                )
                .props("use-chips dense outlined")
                .classes("metrics")
            )
            self._grid = ui.element("div").classes("charts")
        follow(self._watch, self._draw)
        await self._draw()

    def _card(self, number: int) -> None:
        one = self._watch.runs[number]
        with ui.element("div").classes("card run").style(f"border-left-color: {charts.colour(number)}"):
            with ui.row().classes("line"):
                ui.checkbox(one.label, value=True, on_change=lambda event: self._toggle(number, event.value)).props(
                    "dense"
                )
                ui.link("episodes", address("/episodes", run=number)).classes("small")
            self._told[number] = ui.label().classes("faint")
            ui.label(str(one.run.root)).classes("faint path")

    async def _toggle(self, number: int, on: bool) -> None:
        (self._shown.add if on else self._shown.discard)(number)
        await self._draw()

    async def _choose(self, event: Any) -> None:
        self._chosen = list(event.value)
        await self._draw()

    async def _draw(self) -> None:
        watch, runs = self._watch, sorted(self._shown)
        names, evals = await watch.ask(_names)
        known = [*evals, *names]
        if known != self._select.options:
            grown = not self._chosen
            self._select.set_options(known)
            if grown:
                self._select.set_value([*evals, *(name for name in _FIRST if name in names)] or names[:6])
        points = await watch.ask(_curves, runs, self._chosen)
        for name in set(self._charts) - set(self._chosen):
            self._charts.pop(name).delete()
        labels = {one.number: one.label for one in watch.runs}
        for name in self._chosen:
            options = charts.curve(name, points.get(name, {}), labels)
            if name in self._charts:
                self._charts[name].options.clear()
                self._charts[name].options.update(options)
            else:
                with self._grid:
                    self._charts[name] = ui.echart(options, on_point_click=self._open).classes("chart card")
        await self._tell()

    def _open(self, event: Any) -> None:
        run = next((one.number for one in self._watch.runs if one.label == event.series_name), None)
        if run is not None and isinstance(event.data, list):
            ui.navigate.to(address("/batch", run=run, step=int(event.data[0])))

    async def _tell(self) -> None:
        last, counts = await self._watch.ask(_figures)
        for one in self._watch.runs:
            row = last.get(one.number)
            phase = one.state.get("phase")
            parts = [str(phase)] if phase else []
            parts += [f"step {row['step']:,}"] if row else ["no step yet"]
            parts += [f"reward {row['reward']:.4g}"] if row and row["reward"] is not None else []
            parts += [f"attempt {row['attempt']}"] if row and row["attempt"] > 1 else []
            parts.append(f"{counts.get(one.number, 0):,} episodes")
            self._told[one.number].set_text(" · ".join(parts))


def _names(tables: duckdb.DuckDBPyConnection) -> tuple[list[str], list[str]]:
    return queries.metric_names(tables), [f"{EVAL}{name}" for name in queries.eval_environments(tables)]


def _figures(tables: duckdb.DuckDBPyConnection) -> tuple[dict[int, Row], dict[int, int]]:
    return queries.last_steps(tables), queries.counted(tables)


def _curves(
    tables: duckdb.DuckDBPyConnection, runs: Sequence[int], chosen: Sequence[str]
) -> dict[str, dict[int, list[queries.Point]]]:
    evals = {f"{EVAL}{name}": series for name, series in queries.eval_curves(tables, runs).items()}
    return {**evals, **queries.curves(tables, runs, [name for name in chosen if not name.startswith(EVAL)])}
