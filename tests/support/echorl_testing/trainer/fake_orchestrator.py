"""The trainer's peer at the wire: serves synthetic batches, takes reports, commits checkpoints as protocols.md says."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
from aiohttp import web

from echorl_core import names
from echorl_core.arrays import pack
from echorl_core.checkpoints import NO_HISTORY, CheckpointManifest, verify, write_manifest
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_core.wire.reports import (
    NoticeReply,
    NoticeReport,
    PartsReply,
    PartsReport,
    RestartReply,
    RestartReport,
    StepReport,
)
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing.ports import free_port
from echorl_testing.trainer.batches import rank_batch

TOKEN = "secret-token"


class FakeOrchestrator:
    """One attempt's orchestrator: ``steps`` batches for ``num_ranks`` ranks, a checkpoint every ``interval``.

    Every ``context`` ranks are given the same batch.
    """

    def __init__(
        self,
        run: RunDirectory,
        identity: RunIdentity,
        *,
        steps: int,
        num_ranks: int = 1,
        interval: int = 2,
        context: int = 1,
    ) -> None:
        self.context = context
        self.run, self.identity = run, identity
        self.steps, self.num_ranks, self.interval = steps, num_ranks, interval
        self.announcements: list[PolicyAnnouncement] = []
        self.reports: list[StepReport] = []
        self.parts: dict[int, dict[int, PartsReport]] = defaultdict(dict)
        self.committed: list[int] = []
        self.abandoned: list[int] = []
        self.pulls: list[tuple[int, int]] = []
        """(step, rank) of every batch that was asked for."""
        self.events: list[str] = []
        """What was handed out and came in, in order: ``policy 0``, ``batch 1``, ``step 1``."""
        self.change: Callable[[RankBatch], RankBatch] = lambda batch: batch
        """Applied to every batch before it is sent."""
        self.headers: list[dict[str, str]] = []
        self.late_ranks: set[int] = set()
        """Ranks that are answered 204 whenever they first ask for a step."""
        self.sealed = steps
        """Batches beyond this step are answered 204."""
        self.finish = True
        """Whether a pull beyond the last step is answered 410 once its checkpoint is committed."""
        self.stop: StopNotice | None = None
        self.notices: list[NoticeReport] = []
        """What ranks that were given notice have said."""
        self.restarts: list[RestartReport] = []
        """What gangs that were started again in place have said."""
        self.drops = False
        """Whether the step under way is dropped after a notice."""
        self.broken = 0
        """How many further requests are answered 503."""
        self.refuse_policy = 0
        """How many further announcements are answered 503."""
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> "FakeOrchestrator":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.halt()

    async def start(self) -> None:
        """Listen; on the same port again after ``halt``."""
        self.port = self.port or free_port()
        application = web.Application(middlewares=[self._guard])
        application.router.add_get("/trainer/batch", self._batch)
        application.router.add_post("/trainer/policy", self._policy)
        application.router.add_post("/trainer/step", self._step)
        application.router.add_post("/trainer/parts", self._parts)
        application.router.add_post("/trainer/notice", self._given_notice)
        application.router.add_post("/trainer/restart", self._restarted)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def halt(self) -> None:
        """Stop listening and drop connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, condition: Callable[[], bool], seconds: float = 180.0) -> None:
        """Wait for a condition on what was received."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError("the condition did not become true in time")
            await asyncio.sleep(0.02)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if self.broken > 0:
            self.broken -= 1
            return web.Response(status=503, text="starting")
        if refusal := self.identity.refusal(request.headers):
            return web.json_response({"error": refusal}, status=409)
        if request.headers.get(names.HEADER_TOKEN) != TOKEN:
            return web.json_response({"error": "no token"}, status=403)
        return await handler(request)

    async def _batch(self, request: web.Request) -> web.Response:
        step, rank = int(request.query["step"]), int(request.query["rank"])
        if rank in self.late_ranks and (step, rank) not in self.pulls:
            self.pulls.append((step, rank))
            return web.Response(status=204)
        self.pulls.append((step, rank))
        deadline = time.monotonic() + min(1.0, float(request.query["wait"]))
        while True:
            if notice := self._notice(step):
                return web.Response(body=msgspec.json.encode(notice), status=410)
            if step <= min(self.sealed, self.steps):
                self.events.append(f"batch {step}")
                return web.Response(body=self.bytes_of(step, rank))
            if time.monotonic() >= deadline:
                return web.Response(status=204)
            await asyncio.sleep(0.02)

    def _notice(self, step: int) -> StopNotice | None:
        if self.stop is not None and step > self.stop.step:
            return self.stop
        if step > self.steps and self.finish and (self.steps in self.committed or self.steps == 0):
            return StopNotice(reason="finished", step=self.steps, checkpoint=False)
        return None

    def bytes_of(self, step: int, rank: int) -> bytes:
        """The sealed batch."""
        batch = rank_batch(
            step,
            rank // self.context,
            num_ranks=self.num_ranks // self.context,
            attempt=self.identity.attempt,
            run_uid=self.identity.uid,
            checkpoint=step % self.interval == 0,
            last=step == self.steps,
        )
        return pack(self.change(batch))

    async def _policy(self, request: web.Request) -> web.Response:
        if self.refuse_policy > 0:
            self.refuse_policy -= 1
            return web.Response(status=503, text="starting")
        self.announcements.append(msgspec.json.decode(await request.read(), type=PolicyAnnouncement))
        self.events.append(f"policy {self.announcements[-1].version}")
        return web.json_response({})

    async def _step(self, request: web.Request) -> web.Response:
        self.reports.append(msgspec.json.decode(await request.read(), type=StepReport))
        self.events.append(f"step {self.reports[-1].step}")
        return web.json_response({})

    async def _parts(self, request: web.Request) -> web.Response:
        report = msgspec.json.decode(await request.read(), type=PartsReport)
        self.parts[report.step][report.rank] = report
        if any(one.error for one in self.parts[report.step].values()) and report.step not in self.abandoned:
            self.abandoned.append(report.step)
        if len(self.parts[report.step]) == self.num_ranks and report.step not in (*self.committed, *self.abandoned):
            self._commit(report.step)
        state = "committed" if report.step in self.committed else "waiting"
        reply = PartsReply(state="abandoned" if report.step in self.abandoned else state)  # type: ignore[arg-type]
        return web.Response(body=msgspec.json.encode(reply))

    async def _restarted(self, request: web.Request) -> web.Response:
        report = msgspec.json.decode(await request.read(), type=RestartReport)
        self.restarts.append(report)
        for step in [step for step in self.parts if step not in self.committed]:
            del self.parts[step]
        state = "committed" if report.step in self.committed else "waiting"
        return web.Response(body=msgspec.json.encode(RestartReply(checkpoint=state)))  # type: ignore[arg-type]

    def commit_nothing(self, step: int) -> None:
        """Commit a checkpoint without any part."""
        self._commit(step)

    async def _given_notice(self, request: web.Request) -> web.Response:
        self.notices.append(msgspec.json.decode(await request.read(), type=NoticeReport))
        if self.stop is None and not self.drops:
            given = max((int(event.split()[1]) for event in self.events if event.startswith("batch ")), default=0)
            self.stop = StopNotice(reason="notice", step=given, checkpoint=given not in self.committed)
        step = None if self.drops or self.stop is None else self.stop.step
        return web.Response(body=msgspec.json.encode(NoticeReply(step=step, why="as the test says")))

    def _commit(self, step: int) -> None:
        manifest = CheckpointManifest(
            run_uid=self.identity.uid,
            attempt=self.identity.attempt,
            step=step,
            policy_version=step,
            num_ranks=self.num_ranks,
            committed_at=datetime.now(UTC).isoformat(timespec="seconds"),
            history=NO_HISTORY,
            parts=[part for report in self.parts[step].values() for part in report.parts],
        )
        verify(self.run.checkpoint(step), manifest)
        write_manifest(self.run.checkpoint(step), manifest)
        self.committed.append(step)
