"""The server of the pages: one address for each, and what an address may ask for."""

import socket
from importlib.resources import files
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query
from nicegui import ui

from echorl_cli.view.guard import Guard
from echorl_cli.view.pages.batch import BatchPage
from echorl_cli.view.pages.episodes import ERROR_CLASSES, EpisodesPage
from echorl_cli.view.pages.runs import RunsPage
from echorl_cli.view.queries import ORDERS, Wanted
from echorl_cli.view.watch import Watch

TITLE = "EchoRL runs"


def serve(watch: Watch, listener: socket.socket, token: str) -> None:
    """Serve pages on a socket until the process is asked to end.

    Args:
        watch: what the pages show.
        listener: bound to its address.
        token: what visitors must bring; empty: they must be on this machine.
    """
    _pages(watch)
    ui.add_head_html(f"<style>{files('echorl_cli.view').joinpath('page.css').read_text()}</style>", shared=True)
    application = FastAPI(openapi_url=None)
    ui.run_with(application, title=TITLE, favicon="📈", tailwind=False, show_welcome_message=False)
    config = uvicorn.Config(
        Guard(application, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        ws="websockets-sansio",
    )
    uvicorn.Server(config).run(sockets=[listener])


def _pages(watch: Watch) -> None:
    known = {one.number: one for one in watch.runs}

    @ui.page("/")
    async def runs() -> None:
        await RunsPage(watch).build()

    @ui.page("/batch")
    async def batch(run: int = 0, step: int | None = None) -> None:
        await BatchPage(watch, run if run in known else 0, step).build()

    @ui.page("/episodes")
    async def episodes(
        *,
        run: Annotated[list[int] | None, Query()] = None,
        kind: str = "",
        environment: str = "",
        stop: str = "",
        failed: bool | None = None,
        error_class: str = "",
        in_batch: bool | None = None,
        reward_from: float | None = None,
        reward_to: float | None = None,
        step_from: int | None = None,
        step_to: int | None = None,
        text: str = "",
        order: str = "newest",
    ) -> None:
        wanted = Wanted(
            runs=tuple(number for number in run or () if number in known),
            kind=kind if kind in {"train", "eval"} else "",
            environment=environment,
            stop=stop,
            failed=failed,
            error_class=error_class if error_class in ERROR_CLASSES else "",
            in_batch=in_batch,
            reward_from=reward_from,
            reward_to=reward_to,
            step_from=step_from,
            step_to=step_to,
            text=text,
        )
        await EpisodesPage(watch, wanted, order if order in ORDERS else "newest").build()

    @ui.page("/episode")
    async def episode(kind: str, attempt: int, step: int, episode: str, run: int = 0) -> None:
        # Not before somebody asks: it brings numpy, a quarter of a second of the start.
        from echorl_cli.view.episode import Place  # noqa: PLC0415
        from echorl_cli.view.pages.episode import EpisodePage  # noqa: PLC0415

        await EpisodePage(watch, known.get(run, watch.runs[0]), Place(kind, attempt, step, episode)).build()
