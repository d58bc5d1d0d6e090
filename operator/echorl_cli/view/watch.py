"""Looks at the runs' folders again and again, beside the pages that ask for what it found."""

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar

import duckdb

from echorl_cli.view.folders import ShownRun
from echorl_cli.view.intake import Intake
from echorl_cli.view.tables import opened

P = ParamSpec("P")
T = TypeVar("T")

INTERVAL_S = 1.0
_CLOSE_S = 10.0
_FIRST_PAGE_S = 3.0
"""How long the second look waits for the first page: reading a large run takes every core."""


class Watch:
    """The runs, and tables of what they have written so far."""

    def __init__(self, runs: Sequence[ShownRun], more_notices: Callable[[], list[str]] = list) -> None:
        """``more_notices``: what else people should know of these runs, asked for each page."""
        self.runs = list(runs)
        self._more_notices = more_notices
        self.version = 0
        """Counts the looks that found something."""
        self.failure = ""
        """Why nothing new is seen any more; empty while all is well."""
        self._tables = opened([one.run.root for one in runs])
        self._intakes = [Intake(one, self._tables.cursor()) for one in runs]
        self._ended = threading.Event()
        self._paged = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more, and let the tables go; a look that is under way is waited for, but not for ever."""
        self._ended.set()
        self._paged.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            return  # on a disk that does not answer; it is a daemon's thread
        self._intakes.clear()
        self._tables.close()

    @property
    def notices(self) -> list[str]:
        """What cannot be shown, and why."""
        return [*self._more_notices(), *(text for one in self._intakes for text in list(one.notices.values()))]

    @property
    def waiting(self) -> int:
        """Parquet files that are there and not taken in."""
        return sum(one.waiting for one in self._intakes)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """The tables, for one thread that asks them."""
        return self._tables.cursor()

    async def ask(
        self, question: Callable[Concatenate[duckdb.DuckDBPyConnection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What ``question`` finds in the tables, in a thread of its own."""
        return await asyncio.to_thread(question, self.cursor(), *args, **kwargs)

    def paged(self) -> None:
        """A browser has a page: from now on looks need not wait for one."""
        self._paged.set()

    def look(self) -> bool:
        """Take in what is new; tells whether there was anything."""
        found = [one.take() for one in self._intakes]
        self.version += any(found)
        return any(found)

    def _look_on(self) -> None:
        try:
            self.look()
            self._paged.wait(_FIRST_PAGE_S)
            while not self._ended.is_set():
                if not self.look():
                    self._ended.wait(INTERVAL_S)
        except Exception:  # told on every page: an old page that looks alive would be worse
            self.failure = traceback.format_exc(limit=-1).strip().splitlines()[-1]
