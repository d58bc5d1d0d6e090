"""The frame: kopf runs the process, tells of changed runs, and answers the kubelet's probes.

kopf only reads here: its handlers put the key of a run that somebody has edited into the queue. It writes no
annotation, no finalizer and no status, keeps no peering object, and posts no event.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Never

import kopf

from echorl_operator import names
from echorl_operator.kube.credentials import Credentials
from echorl_operator.kube.login import Login
from echorl_operator.observed.runs import RunKey
from echorl_operator.process import Operator

WATCH_S = 240
"""A watch of kopf's ends after so long and begins anew; bookmarks come more often."""


class _NoDiffs(kopf.DiffBaseStorage):
    """No handler asks what has changed, so no object is copied to find that out."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise RuntimeError("nothing is stored with objects")


def configure(settings: kopf.OperatorSettings) -> None:
    """Set what keeps kopf quiet and its watches alive."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + 30
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    # With the default, a watch dies for good when the API server is away for a minute.
    settings.networking.error_backoffs = [1, 2, 3, 5, *([5] * 10_000)]
    settings.execution.max_workers = 1
    settings.persistence.diffbase_storage = _NoDiffs()
    # It tells of every event that it was handled.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


def registry(operator: Operator, task: "asyncio.Task[Never]", credentials: Credentials) -> kopf.OperatorRegistry:
    """Handlers of one process.

    Args:
        operator: whose queue gets the runs.
        task: of the operator; a process whose task has ended is not alive.
        credentials: for the API server.
    """
    made = kopf.OperatorRegistry()
    generations: dict[RunKey, tuple[str, int]] = {}

    entrance = Login(credentials)

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.AiohttpSession:
        return await entrance.session()

    @kopf.on.startup(registry=made)
    async def startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)
    async def changed(type: str | None, meta: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        key, version = RunKey(meta["namespace"], meta["name"]), (meta["uid"], meta.get("generation", 0))
        if type == "DELETED":
            generations.pop(key, None)
        elif generations.get(key) == version:
            return  # a write of status, most likely our own: nobody's edit, so it must not go before others
        else:
            generations[key] = version
        operator.notice(key)

    @kopf.on.probe(id="alive", registry=made)
    async def alive(**_: Any) -> str:
        if task.done():
            raise kopf.PermanentError("the operator has ended")
        if (why := operator.watchdog.not_alive()) is not None:
            # Anything but a permanent error makes the probe itself hang.
            raise kopf.PermanentError(why)
        return "ok"

    return made
