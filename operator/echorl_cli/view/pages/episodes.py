"""Episodes by a filter, a hundred at a time. The address holds the filter, so it can be kept and sent."""

from dataclasses import asdict, replace
from typing import Any

import duckdb
from nicegui import ui

from echorl_cli.records import Row
from echorl_cli.view import queries
from echorl_cli.view.pages.frame import address, follow, frame
from echorl_cli.view.pages.table import EpisodeTable
from echorl_cli.view.queries import Wanted
from echorl_cli.view.watch import Watch

A_PAGE = 100
_KINDS = {"": "train and eval", "train": "train", "eval": "eval"}
_IN_BATCH = {None: "any", True: "in the batch", False: "in none"}
_FAILED = {None: "any", True: "failed", False: "did not fail"}
ERROR_CLASSES = ("infrastructure", "harness", "agent")
"""Of episodes that failed; see docs/agents.md."""


class EpisodesPage:
    """Holds what one visitor asked for."""

    def __init__(self, watch: Watch, wanted: Wanted, order: str) -> None:
        self._watch, self._wanted, self._order, self._page = watch, wanted, order, 0

    async def build(self) -> None:
        """Make the page."""
        environments, stops = await self._watch.ask(_choices)
        with frame(self._watch, "/episodes"):
            with ui.row().classes("card filters"):
                if len(self._watch.runs) > 1:
                    runs = {one.number: one.label for one in self._watch.runs}
                    chosen = [run for run in self._wanted.runs if run in runs]
                    ui.select(
                        runs,
                        multiple=True,
                        value=chosen,
                        label="Runs",
                        on_change=lambda event: self._ask(runs=tuple(event.value)),
                    ).props("dense outlined").classes("wide")
                self._environment = self._one_of("Environment", "environment", environments)
                self._stop = self._one_of("Ended", "stop", stops)
                self._mapped("Failed", "failed", _FAILED)
                self._mapped("Class of failure", "error_class", {"": "any", **{one: one for one in ERROR_CLASSES}})
                self._mapped("Kind", "kind", _KINDS)
                self._mapped("Batch", "in_batch", _IN_BATCH)
                self._number("Reward from", "reward_from")
                self._number("to", "reward_to")
                self._number("Step from", "step_from", whole=True)
                self._number("to", "step_to", whole=True)
                ui.input(
                    "Episode, task, group or error",
                    value=self._wanted.text,
                    on_change=lambda event: self._ask(text=event.value.strip()),
                ).props("dense outlined debounce=300 clearable").classes("wide search")
                ui.select(list(queries.ORDERS), value=self._order, label="Order", on_change=self._reorder).props(
                    "dense outlined"
                )
            with ui.row().classes("line"):
                self._told = ui.label().classes("told")
                ui.space()
                self._back = ui.button(icon="chevron_left", on_click=lambda: self._turn(-1)).props("flat dense")
                self._next = ui.button(icon="chevron_right", on_click=lambda: self._turn(1)).props("flat dense")
            self._table = EpisodeTable(self._watch)
        follow(self._watch, self._show)
        await self._show()

    def _one_of(self, label: str, name: str, known: list[str]) -> ui.select:
        return self._mapped(label, name, _options(known, getattr(self._wanted, name)))

    def _mapped(self, label: str, name: str, options: dict[Any, str]) -> ui.select:
        return (
            ui.select(
                options,
                value=getattr(self._wanted, name),
                label=label,
                on_change=lambda event: self._ask(**{name: event.value}),
            )
            .props("dense outlined")
            .classes(f"by-{name}")
        )

    def _number(self, label: str, name: str, *, whole: bool = False) -> None:
        def asked(event: Any) -> Any:
            value = event.value
            return self._ask(**{name: None if value is None else int(value) if whole else float(value)})

        ui.number(label, value=getattr(self._wanted, name), on_change=asked).props(
            "dense outlined debounce=300 clearable"
        ).classes(f"narrow by-{name}")

    async def _ask(self, **changed: Any) -> None:
        self._wanted, self._page = replace(self._wanted, **changed), 0
        await self._asked()

    async def _reorder(self, event: Any) -> None:
        self._order, self._page = event.value, 0
        await self._asked()

    async def _asked(self) -> None:
        asked = {name: value for name, value in asdict(self._wanted).items() if name != "runs"}
        ui.navigate.history.replace(address("/episodes", run=list(self._wanted.runs), order=self._order, **asked))
        await self._show()

    async def _turn(self, by: int) -> None:
        self._page = max(0, self._page + by)
        await self._show()

    async def _show(self) -> None:
        rows, total, (environments, stops) = await self._watch.ask(
            _found, self._wanted, self._order, self._page * A_PAGE
        )
        for select, known in ((self._environment, environments), (self._stop, stops)):
            options = _options(known, select.value)
            if options != select.options:
                select.set_options(options)
        count, reward = total["episodes"], total["reward"]
        first = self._page * A_PAGE
        shown = f"{first + 1:,} to {first + len(rows):,} of " if count > len(rows) else ""
        mean = "" if reward is None else f" · mean reward {reward:.4g}"
        self._told.set_text(f"{shown}{count:,} episode{'' if count == 1 else 's'}{mean}")
        self._back.set_enabled(self._page > 0)
        self._next.set_enabled(first + len(rows) < count)
        self._table.show(rows)


def _options(known: list[str], chosen: str) -> dict[Any, str]:
    """Of a choice: what there is, and what is chosen though no episode has it yet."""
    return {"": "any", **{one: one for one in sorted({*known, chosen} - {""})}}


def _choices(tables: duckdb.DuckDBPyConnection) -> tuple[list[str], list[str]]:
    return queries.choices(tables, "environment"), queries.choices(tables, "stop")


def _found(
    tables: duckdb.DuckDBPyConnection, wanted: Wanted, order: str, offset: int
) -> tuple[list[Row], Row, tuple[list[str], list[str]]]:
    rows = queries.episodes(tables, wanted, order=order, limit=A_PAGE, offset=offset)
    return rows, queries.totals(tables, wanted), _choices(tables)
