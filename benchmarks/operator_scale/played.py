"""What nobody runs in a benchmark: pods on fake nodes, as kwok plays them, and one server for all orchestrators."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import web

from echorl_core import names as core_names
from echorl_core.termination_message import Preparation, encoded, message_of_end
from echorl_operator import names
from echorl_operator.children.cluster_placement import ORCHESTRATOR_PORT
from echorl_operator.names import PodRole

ADDRESS: Final = "127.100.0.1"
"""Of every orchestrator: kwok says so in the pods' statuses, and one server tells runs apart by their headers."""
_ATTEMPT = "9999999"
_ROLE = f'.metadata.labels["{names.LABEL_ROLE}"]'

_READY = """
{{ $now := Now }}
phase: Running
startTime: {{ $now | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: %s
conditions:
{{ range $type := list "Initialized" "Ready" "ContainersReady" }}
- {type: {{ $type }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""
_SUCCEEDED = """
{{ $now := Now }}
phase: Succeeded
startTime: {{ $now | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
podIP: %s
conditions:
- {type: Ready, status: "False", lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ $attempt := index .metadata.labels "%s" }}
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  ready: false
  restartCount: 0
  state:
    terminated:
      exitCode: 0
      reason: Completed
      finishedAt: {{ $now | Quote }}
      message: {{ replace "%s" $attempt `%s` | Quote }}
{{ end }}
"""
_ANY_ADDRESS = (
    '{{ PodIPWith .spec.nodeName false ( or .metadata.uid "" ) ( or .metadata.name "" ) '
    '( or .metadata.namespace "" ) | Quote }}'
)


def stages() -> str:
    """Pods' lives for kwok: prepare succeeds at once, orchestrators are ready at ``ADDRESS``, all others ready."""
    spoken = (PodRole.PREPARE, PodRole.ORCHESTRATOR)
    prepared = _SUCCEEDED % (_ANY_ADDRESS, names.LABEL_ATTEMPT, _ATTEMPT, _last_words())
    bodies = [
        _stage("ready", [_born(), _expression(_ROLE, "NotIn", spoken)], _READY % _ANY_ADDRESS),
        _stage("orchestrator", [_born(), _expression(_ROLE, "In", (PodRole.ORCHESTRATOR,))], _READY % ADDRESS),
        _stage("prepare", [_born(), _expression(_ROLE, "In", (PodRole.PREPARE,))], prepared),
        _deletion(),
    ]
    return "\n---\n".join(json.dumps(body) for body in bodies)


def _last_words() -> str:
    words = message_of_end("prepare", core_names.ExitCode.OK, "prepared", attempt=int(_ATTEMPT))
    return encoded(msgspec.structs.replace(words, prepared=Preparation(resume_step=0, model_path="/models/m"))).decode()


def _expression(key: str, operator: str, values: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"key": key, "operator": operator} | ({"values": [str(one) for one in values]} if values else {})


def _born() -> dict[str, Any]:
    return _expression(".status.podIP", "DoesNotExist")


def _stage(name: str, where: list[dict[str, Any]], template: str) -> dict[str, Any]:
    living = _expression(".metadata.deletionTimestamp", "DoesNotExist")
    return _body(name, [living, *where], {"statusTemplate": template})


def _deletion() -> dict[str, Any]:
    deleted = _expression(".metadata.deletionTimestamp", "Exists")
    return _body("delete", [deleted], {"finalizers": {"empty": True}, "delete": True})


def _body(name: str, where: list[dict[str, Any]], then: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": where},
            "next": then,
        },
    }


class Orchestrators:
    """Answers for all runs: every one is Running at step 3, and takes over live settings at once."""

    def __init__(self) -> None:
        self._live: dict[str, int] = {}
        self._changed: dict[str, asyncio.Event] = {}

    async def state(self, request: web.Request) -> web.Response:
        """``GET /state``: at once, or when something changes, or after ``wait``."""
        uid = request.headers[core_names.HEADER_RUN]
        if request.query.get("since") == str(self._revision(uid)):
            changed = self._changed.setdefault(uid, asyncio.Event())
            try:
                async with asyncio.timeout(float(request.query.get("wait", "0"))):
                    await changed.wait()
            except TimeoutError:
                pass
        answer = {
            "uid": uid,
            "attempt": int(request.headers[core_names.HEADER_ATTEMPT]),
            "revision": self._revision(uid),
            "phase": "Running",
            "step": 3,
            "waiting_for": "episodes",
            "policy": {"trained": 3, "served": {"min": 3, "max": 3}, "staleness_max": 1},
            "live_generation": self._live.get(uid, 0),
        }
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def live(self, request: web.Request) -> web.Response:
        """``POST /control/live``."""
        uid = request.headers[core_names.HEADER_RUN]
        self._live[uid] = int((await request.json())["generation"])
        self._changed.pop(uid, asyncio.Event()).set()
        return web.json_response({"generation": self._live[uid], "in_effect": True})

    def _revision(self, uid: str) -> int:
        return 1 + self._live.get(uid, 0)


@asynccontextmanager
async def orchestrators() -> AsyncIterator[None]:
    """The server, at ``ADDRESS``."""
    played = Orchestrators()
    app = web.Application()
    app.router.add_get("/state", played.state)
    app.router.add_post("/control/live", played.live)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, ORCHESTRATOR_PORT, backlog=2048).start()
    try:
        yield
    finally:
        await runner.cleanup()
