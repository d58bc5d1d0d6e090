"""One episode: its conversations, its tokens, its time, and what its environment left."""

from typing import Any

import duckdb
from nicegui import ui

from echorl_cli.tokens import headline
from echorl_cli.view import charts, markup, token_markup
from echorl_cli.view.episode import Episode, Place, read_episode, trained
from echorl_cli.view.folders import ShownRun
from echorl_cli.view.pages.frame import address, frame
from echorl_cli.view.watch import Watch
from echorl_core.tokens import NotTrainedTokens, TrainedSequence

_LANE_PX, _AXIS_PX = 30, 70


class EpisodePage:
    """One episode, for one visitor."""

    def __init__(self, watch: Watch, shown: ShownRun, place: Place) -> None:
        self._watch, self._shown, self._place = watch, shown, place

    async def build(self) -> None:
        """Make the page."""
        found = await self._watch.ask(read_episode, self._shown, self._place)
        with frame(self._watch, "/episode"):
            if found is None:
                ui.label(f"{self._shown.label} has no record of {self._place.episode}; see").classes("told")
                ui.link("its episodes", address("/episodes", run=self._shown.number))
                return
            sequences, problem = await self._watch.ask(_trained, self._shown, self._place)
            self._head(found)
            if found.row["error"]:
                ui.label(f"{found.row['error_kind']}: {found.row['error']}").classes("notice error")
            for notice in found.notices:
                ui.label(notice).classes("notice")
            with ui.tabs().props("dense align=left no-caps").classes("tabs") as tabs:
                talk = ui.tab("Conversation")
                tokens = ui.tab(f"Tokens ({len(sequences)})")
                time = ui.tab("Time")
                info = ui.tab(f"Info ({len(found.info)})")
            with ui.tab_panels(tabs, value=talk, animated=False).classes("panels"):
                with ui.tab_panel(talk):
                    _conversations(found)
                with ui.tab_panel(tokens):
                    _tokens(sequences, problem)
                with ui.tab_panel(time):
                    _time(found)
                with ui.tab_panel(info):
                    _info(found)

    def _head(self, found: Episode) -> None:
        row, run = found.row, self._shown.number
        with ui.row().classes("card facts"):
            ui.label(str(row["episode"])).classes("title")
            ui.link(self._shown.label, address("/episodes", run=run)).classes("small")
            ui.link(f"step {row['step']:,}", address("/batch", run=run, step=row["step"])).classes("small")
            if row["group"]:
                ui.link("its group", address("/episodes", run=run, text=row["group"])).classes("small")
            ui.space()
            for name, text in _facts(found):
                with ui.element("div").classes("fact"):
                    ui.label(name).classes("faint")
                    ui.label(text)


def _facts(found: Episode) -> list[tuple[str, str]]:
    row = found.row
    out = "no: it failed" if row["error_class"] else "filtered: " + (row["filters"] or "?")
    kept = {True: "yes", False: out}.get(row["in_batch"])
    trains = [name for name, on in (("RL", row["trains_rl"]), ("ECHO", row["trains_ce"])) if on]
    several: list[tuple[str, Any]] = [
        ("reward", row["reward"]),
        ("advantage", row["advantage"]),
        ("ended", row["stop"]),
        ("failed by", row["error_class"]),
        ("at", row["phase"]),
        ("environment", row["environment"]),
        ("task", row["task_key"]),
        ("in batch", kept),
        ("trains", " + ".join(trains) if trains else None),
        ("turns", row["turns"]),
        ("tokens", row["sampled_tokens"]),
        ("seconds", row["seconds"]),
        *found.numbers.items(),
    ]
    return [
        (name, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in several
        if value is not None
    ]


def _conversations(found: Episode) -> None:
    if len(found.branches) == 1:
        ui.html(markup.conversation(found.branches[0].messages), sanitize=True).classes("full")
    else:
        with ui.tabs().props("dense align=left no-caps").classes("branches") as tabs:
            for branch in found.branches:
                ui.tab(str(branch.number), f"branch {branch.number}" + (f" · {branch.unused}" if branch.unused else ""))
        with ui.tab_panels(tabs, value=str(found.branches[0].number), animated=False).classes("panels"):
            for branch in found.branches:
                with ui.tab_panel(str(branch.number)):
                    ui.html(markup.conversation(branch.messages), sanitize=True).classes("full")
    if found.transcript:
        ui.label("What members said aloud").classes("told")
        ui.html(markup.transcript(found.transcript), sanitize=True).classes("full")


def _trained(_: duckdb.DuckDBPyConnection, shown: ShownRun, place: Place) -> tuple[list[TrainedSequence], str]:
    try:
        return list(trained(shown, place)) if place.kind == "train" else [], ""
    except NotTrainedTokens as error:
        return [], str(error)


def _tokens(sequences: list[TrainedSequence], problem: str) -> None:
    if problem:
        ui.label(problem).classes("notice")
    if not sequences:
        ui.label(
            "No exported token of this episode: tokenExport was off for the step, or nothing of it trained."
        ).classes("faint")
        return
    chosen = (
        ui.toggle(list(token_markup.COLOURINGS), value="training")
        .props("dense no-caps unelevated")
        .classes("colouring")
    )

    place = ui.column().classes("full")

    def draw() -> None:
        place.clear()
        with place:
            for one in sequences:
                ui.label(headline(one)).classes("told")
                ui.html(token_markup.legend(one.mode, chosen.value), sanitize=True).classes("legend")
                ui.html(token_markup.tokens(one, chosen.value), sanitize=True).classes("card full")

    draw()
    chosen.on_value_change(draw)


def _time(found: Episode) -> None:
    if not found.turns:
        ui.label("No times: only the few episodes of a step in episodes.jsonl have them.").classes("faint")
        return
    height = _LANE_PX * len(found.turns) + _AXIS_PX
    ui.html(
        '<span class="swatch generation"></span> generation <span class="swatch tool"></span> tool '
        '<span class="swatch unused"></span> does not train <span class="swatch aborted"></span> aborted',
        sanitize=True,
    ).classes("legend")
    ui.echart(charts.swimlane(found.turns)).classes("card lanes").style(f"height: {height}px")


def _info(found: Episode) -> None:
    if not found.info:
        ui.label("The environment's state has no recorded column (environments: stateColumns).").classes("faint")
    for name, value in found.info.items():
        with ui.element("div").classes("card field"):
            ui.label(name).classes("title")
            ui.html(markup.field(value), sanitize=True)
