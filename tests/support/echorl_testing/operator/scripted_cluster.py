"""Plays kubelet and orchestrators of a namespace without nodes: pods start, become ready and end as a test says.

The API server and its controllers are real; only what runs on nodes is played. A pod is left alone while it holds a
scheduling gate. Orchestrators answer ``GET /state`` and ``POST /control/stop`` at loopback addresses of their own.
"""

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from echorl_core.names import ExitCode
from echorl_core.termination_message import Preparation, TerminationMessage, encoded, message_of_end
from echorl_operator import names
from echorl_operator.children.cluster_placement import ORCHESTRATOR_PORT
from echorl_testing.cluster.api import STRATEGIC_MERGE_PATCH, Api, ApiError

_addresses = itertools.count(2)
_POLL_S = 0.15
_NOBODYS = "192.0.2.1"
"""Address of pods that nobody calls. A loopback address is none that controllers may put into EndpointSlices."""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class PlayedOrchestrator:
    """What one run's orchestrator says; a test changes it."""

    uid: str
    attempt: int
    phase: str = "Running"
    step: int = 0
    reward: float | None = None
    checkpoint: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    sandboxes: dict[str, Any] | None = None
    goodput: dict[str, Any] | None = None
    restarts_in_place: dict[str, Any] = field(default_factory=dict)
    """Of the trainer's gang."""
    engines: int = 0
    """How many serve."""
    revision: int = 1
    asked: int = 0
    """Times that it was asked for its state."""
    asked_to_stop: int = 0
    live: list[dict[str, Any]] = field(default_factory=list)
    """Live settings that it was sent."""

    def state(self) -> dict[str, Any]:
        """The answer to ``GET /state``."""
        return {
            "uid": self.uid,
            "attempt": self.attempt,
            "revision": self.revision,
            "phase": self.phase,
            "step": self.step,
            "reward": self.reward,
            "waiting_for": "episodes",
            "policy": {"trained": self.step, "served": {"min": self.step, "max": self.step}, "staleness_max": 1},
            "checkpoint": self.checkpoint,
            "engines": [{"name": f"10.0.0.{number}:8000", "state": "serving"} for number in range(self.engines)],
            "failure": self.failure,
            "sandboxes": self.sandboxes,
            "goodput": self.goodput,
            "restarts_in_place": self.restarts_in_place,
            "live_generation": self.live[-1]["generation"] if self.live else 0,
        }

    def say(self, **changes: Any) -> None:
        """Change what it says."""
        for key, value in changes.items():
            setattr(self, key, value)
        self.revision += 1


class ScriptedCluster:
    """One namespace's pods."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self.orchestrators: dict[str, PlayedOrchestrator] = {}
        """By run."""
        self.prepare: Callable[[int], TerminationMessage] = prepared
        """Last words of the prepare pod of an attempt."""
        self.held: set[str] = set()
        """Roles whose pods do not start."""
        self.admitted: list[tuple[str, int]] = []
        """Trainer pods that were let through, with their attempts, in the order in which that was seen."""
        self._runners: dict[str, web.AppRunner] = {}
        self._seen: set[str] = set()

    async def play(self) -> None:
        """Play until cancelled."""
        while True:
            found = await asyncio.to_thread(self._api.get, self._pods)
            for pod in found["items"]:
                await self._look_at(pod)
            await asyncio.sleep(_POLL_S)

    async def _look_at(self, pod: dict[str, Any]) -> None:
        labels = pod["metadata"].get("labels", {})
        role, uid = labels.get(names.LABEL_ROLE), pod["metadata"]["uid"]
        if role is None or role in self.held or uid in self._seen or "deletionTimestamp" in pod["metadata"]:
            return
        if pod["spec"].get("schedulingGates"):
            return
        self._seen.add(uid)
        attempt = int(labels.get(names.LABEL_ATTEMPT, "0"))
        if role == names.PodRole.PREPARE:
            words = self.prepare(attempt)
            # Not by its name alone: it may have been deleted since it was seen.
            await self._ended(pod["metadata"]["name"], role, words.exit_code, words)
            return
        address = _NOBODYS
        if role == names.PodRole.ORCHESTRATOR:
            address = await self._orchestrator(labels[names.LABEL_RUN], labels[names.LABEL_RUN_UID], attempt)
        elif role == names.PodRole.TRAINER:
            self.admitted.append((pod["metadata"]["name"], attempt))
        await self._set_status(
            pod["metadata"]["name"],
            {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [_condition("Ready"), _condition("ContainersReady"), _condition("PodScheduled")],
                "containerStatuses": [_container(role, {"running": {"startedAt": _now()}}, ready=True)],
            },
        )

    async def end(self, name: str, code: int, words: TerminationMessage | None = None) -> None:
        """A pod's process ends with ``code``; with 137 without a word."""
        role = name_role(await asyncio.to_thread(self._api.get, f"{self._pods}/{name}"))
        await self._ended(name, role, code, words)

    async def succeed(self, run: str = "one", step: int = 20) -> None:
        """A run's orchestrator says that all steps are done, and its process ends."""
        played = self.orchestrators[run]
        played.say(step=step, phase="Succeeded")
        words = message_of_end("orchestrator", ExitCode.OK, "finished", attempt=played.attempt, step=step)
        await self.end(names.orchestrator(run), ExitCode.OK, words)

    async def _ended(self, name: str, role: str, code: int, words: TerminationMessage | None) -> None:
        ended: dict[str, Any] = {
            "exitCode": code,
            "finishedAt": _now(),
            "reason": "Completed" if code == 0 else "Error",
        }
        if words is not None:
            ended["message"] = encoded(words).decode()
        await self._set_status(
            name,
            {
                "phase": "Succeeded" if code == 0 else "Failed",
                "conditions": [_condition("Ready", status="False")],
                "containerStatuses": [_container(role, {"terminated": ended}, ready=False)],
            },
        )

    async def _set_status(self, name: str, status: dict[str, Any]) -> None:
        def patch() -> None:
            try:
                self._api.patch(f"{self._pods}/{name}/status", {"status": status}, content_type=STRATEGIC_MERGE_PATCH)
            except ApiError as error:
                # A pod that is gone, or whose process a test has ended before it was seen to run.
                if error.code != 404 and (error.code, status["phase"]) != (422, "Running"):
                    raise

        await asyncio.to_thread(patch)

    async def _orchestrator(self, run: str, uid: str, attempt: int) -> str:
        played = self.orchestrators[run] = PlayedOrchestrator(uid, attempt)
        number = next(_addresses)
        # Test sessions beside this one have other processes.
        address = f"127.{1 + os.getpid() % 250}.{number // 250}.{number % 250 + 2}"

        async def state(request: web.Request) -> web.Response:
            played.asked += 1
            since, until = request.query.get("since"), time.monotonic() + float(request.query.get("wait", "0"))
            while since == str(played.revision) and time.monotonic() < until:  # noqa: ASYNC110 - a test changes it
                await asyncio.sleep(_POLL_S)
            return web.json_response(played.state())

        async def stop(_: web.Request) -> web.Response:
            played.asked_to_stop += 1
            return web.json_response({"step": played.step})

        async def live(request: web.Request) -> web.Response:
            played.live.append(await request.json())
            played.revision += 1
            return web.json_response({"generation": played.live[-1]["generation"], "in_effect": True})

        app = web.Application()
        app.router.add_post("/control/live", live)
        app.router.add_get("/state", state)
        app.router.add_post("/control/stop", stop)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, address, ORCHESTRATOR_PORT).start()
        self._runners[address] = runner
        return address

    async def close(self) -> None:
        """End the orchestrators."""
        for runner in self._runners.values():
            await runner.cleanup()


@asynccontextmanager
async def scripted(api: Api, namespace: str) -> AsyncIterator[ScriptedCluster]:
    """A played namespace; a failure of the play fails the test."""
    cluster = ScriptedCluster(api, namespace)
    task = asyncio.create_task(cluster.play())
    try:
        yield cluster
        if task.done():
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await cluster.close()


def prepared(attempt: int, resume_step: int = 0) -> TerminationMessage:
    """What a prepare that went well says."""
    words = message_of_end("prepare", ExitCode.OK, f"attempt {attempt} is prepared", attempt=attempt)
    done = Preparation(resume_step=resume_step, model_path="/models/m")
    return msgspec.structs.replace(words, prepared=done)


def name_role(pod: dict[str, Any]) -> str:
    """A pod's role, which names its main container."""
    role: str = pod["metadata"]["labels"][names.LABEL_ROLE]
    return role


def _condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": _now()}


def _container(name: str, state: dict[str, Any], *, ready: bool) -> dict[str, Any]:
    return {
        "name": name,
        "ready": ready,
        "restartCount": 0,
        "image": "played",
        "imageID": "played",
        "state": state,
    }


def pretty(value: Any) -> str:
    """For messages of failed tests."""
    return json.dumps(value, indent=1)
