"""Trainer ranks at the wire: they pull, report, announce and save as docs/protocols.md says, without any tensor."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from echorl_core import names
from echorl_core.arrays import unpack
from echorl_core.checkpoints import part_of
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_core.wire.reports import LogprobGap, PartsReply, PartsReport, StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing.engines.fake_engine import TOKEN, probe_of

_RETRY_S = 0.05


@dataclass
class ScriptedTrainer:
    """All ranks of one attempt. ``run`` returns the notice that ended them."""

    url: str
    identity: RunIdentity
    folder: RunDirectory
    ranks: int = 1
    start_step: int = 0
    batches: dict[tuple[int, int], RankBatch] = field(default_factory=dict)
    """By step and rank."""
    digests: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """Of the bytes that were received, by step and rank."""
    saved: dict[int, str] = field(default_factory=dict)
    """What became of each checkpoint, by step."""
    hold_after: int | None = None
    """Stop pulling once this step is trained, until ``go_on`` is set; ``start_step``: before the first pull."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    seconds: dict[str, float] = field(default_factory=lambda: {"step": 0.5, "wait_batch": 0.1})
    """What each step reports of its parts."""

    async def run(self) -> StopNotice:
        """Train until told to stop."""
        timeout = aiohttp.ClientTimeout(total=120)
        headers = {**self.identity.headers(), names.HEADER_TOKEN: TOKEN}
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            self._session = session
            self._trained = asyncio.Condition()
            self._step = self.start_step
            await self._post("policy", self._announcement(self.start_step))
            notices = await asyncio.gather(*(self._rank(rank) for rank in range(self.ranks)))
        assert len(set(map(repr, notices))) == 1, notices
        return notices[0]

    async def _rank(self, rank: int) -> StopNotice:
        step = self.start_step
        while True:
            if step == self.hold_after:
                self.held.set()
                await self.go_on.wait()
            step += 1
            answer = await self._pull(step, rank)
            if isinstance(answer, StopNotice):
                if answer.checkpoint and answer.step not in self.saved:
                    await self._save(answer.step, rank)
                return answer
            self.batches[step, rank] = answer
            if rank == 0:
                await self._train(step)
            async with self._trained:
                await self._trained.wait_for(lambda step=step: self._step >= step)  # type: ignore[misc]
            if answer.checkpoint:
                await self._save(step, rank)

    async def _train(self, step: int) -> None:
        report = StepReport(
            attempt=self.identity.attempt,
            step=step,
            metrics={"loss/rl": 0.5, "env_nll/all": 2.0},
            gap=LogprobGap(tokens=1, max_abs=0.0, mean_abs=0.0, over_tolerance=0),
            trained_tokens=10,
            packed_tokens=20,
            seconds=self.seconds,
        )
        await self._post("step", report)
        await self._post("policy", self._announcement(step))
        async with self._trained:
            self._step = step
            self._trained.notify_all()

    def _announcement(self, version: int) -> PolicyAnnouncement:
        return PolicyAnnouncement(
            attempt=self.identity.attempt,
            version=version,
            digest=f"digest-{version}",
            url=f"http://trainer/v{version}",
            size_bytes=1,
            seconds_gather=0.0,
            probe=probe_of(version),
        )

    async def _save(self, step: int, rank: int) -> None:
        folder = self.folder.checkpoint(step)
        path: Path = folder / f"attempt_{self.identity.attempt}" / "trainer" / f"rank_{rank}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"step {step} rank {rank}".encode())  # noqa: ASYNC240 - a few bytes
        part = part_of(folder, path, "trainer", rank)
        report = PartsReport(attempt=self.identity.attempt, step=step, rank=rank, parts=[part])
        while True:
            reply = msgspec.json.decode(await self._post("parts", report), type=PartsReply)
            if reply.state != "waiting":
                self.saved[step] = reply.state
                return
            await asyncio.sleep(_RETRY_S)

    async def _pull(self, step: int, rank: int) -> RankBatch | StopNotice:
        while True:
            status, body = await self._patiently("GET", f"/trainer/batch?step={step}&rank={rank}&wait=10")
            if status == 200:
                self.digests.setdefault((step, rank), set()).add(hashlib.sha256(body).hexdigest())
                return unpack(body, RankBatch)
            if status == 410:
                return msgspec.json.decode(body, type=StopNotice)
            assert status == 204, (status, body)

    async def _post(self, name: str, message: msgspec.Struct) -> bytes:
        status, body = await self._patiently("POST", f"/trainer/{name}", data=msgspec.json.encode(message))
        assert status == 200, (name, status, body)
        return body

    async def _patiently(self, method: str, path: str, **more: Any) -> tuple[int, bytes]:
        """An answer, however often the orchestrator is down in between (bounded by the test's own deadline)."""
        while True:
            try:
                async with self._session.request(method, self.url + path, **more) as answer:
                    return answer.status, await answer.read()
            except (aiohttp.ClientError, TimeoutError):
                await asyncio.sleep(_RETRY_S)
