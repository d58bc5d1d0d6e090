"""What every page has: its head, notices, and a look at the watch once a second."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

from nicegui import ui

from echorl_cli.view import charts
from echorl_cli.view.watch import INTERVAL_S, Watch

_PAGES = (("/", "Runs"), ("/batch", "Batch"), ("/episodes", "Episodes"))
_MOST_NOTICES = 5


def address(path: str, **asked: object) -> str:
    """Of a page, with what is asked of it; what is None or empty is left out."""
    query = urlencode({name: value for name, value in asked.items() if value not in (None, "", [])}, doseq=True)
    return f"{path}?{query}" if query else path


@contextmanager
def frame(watch: Watch, here: str) -> Iterator[None]:
    """The page's head; what is made inside stands below it."""
    ui.context.client.on_connect(watch.paged)
    ui.colors(primary=charts.COLOURS[0])
    with ui.header().classes("head"):
        ui.link("EchoRL", "/").classes("brand")
        for path, name in _PAGES:
            ui.link(name, path).classes("tab here" if path == here else "tab")
        ui.space()
        status = ui.label().classes("status")
    notices = ui.column().classes("notices")
    told: list[str] = []

    def tell() -> None:
        loading = f"reading {watch.waiting:,} more files" if watch.waiting else "live"
        status.set_text("stopped" if watch.failure else loading)
        new = [*([f"nothing new is seen any more: {watch.failure}"] if watch.failure else []), *watch.notices]
        if new != told:
            told[:] = new
            notices.clear()
            with notices:
                for text in new[:_MOST_NOTICES]:
                    ui.label(text).classes("notice")
                if len(new) > _MOST_NOTICES:
                    ui.label(f"and {len(new) - _MOST_NOTICES} more").classes("notice")

    tell()
    ui.timer(INTERVAL_S, tell)
    with ui.column().classes("page"):
        yield


def follow(watch: Watch, update: Callable[[], Awaitable[None]]) -> None:
    """Have ``update`` called after every look that finds something from now on, and never twice at the same time.

    Called before the page is first filled: what is found meanwhile would else be shown with the next find, or never.
    """
    seen = [watch.version]

    async def looked() -> None:
        if watch.version != seen[0]:
            seen[0] = watch.version
            await update()

    ui.timer(INTERVAL_S, looked)
