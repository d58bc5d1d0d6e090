"""A whole life of a run without engines, environments and tensors: everything of the orchestrator between them is real.

Task deck, scheduler, groups, ready buffer, training, sealing, batch store, trainer desk, committer, records, live
settings and endings work on a real run directory, in virtual time. What is imagined is who
plays (``imagined_orchestrator``), which version engines hold, the ranks, and what happens to all of them.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from echorl_core import checkpoints
from echorl_core.arrays import unpack
from echorl_core.attempts import read_prepared
from echorl_core.config import BatchConfig, CheckpointConfig, OrchestratorConfig
from echorl_core.identity import RunIdentity
from echorl_core.live import LiveCheckpoints, LiveSettings
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import RankBatch, StopNotice, TokenRole
from echorl_core.wire.reports import LogprobGap, NoticeReport, PartsReport, StepReport
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_orchestrator.attempt.live_settings import LiveRefused
from echorl_orchestrator.batches.sealing import SavedState, read_state
from echorl_orchestrator.control.endings import Ending
from echorl_orchestrator.tasks.task_deck import Cursor
from echorl_testing.engines.fake_policies import policy
from echorl_testing.manifests.role_config import orchestrator_config
from echorl_testing.orchestrator.imagined_orchestrator import NOTICE_S, TASKS, OrchestratorLife, Played
from echorl_testing.orchestrator.scripted_player import environment
from echorl_testing.orchestrator.sealed import UID, write_parts

T = TypeVar("T")

LONGEST_S = 200_000.0
"""Of a life, in virtual time."""
GAP = LogprobGap(tokens=0, max_abs=None, mean_abs=None, over_tolerance=0)


@dataclass
class Trained:
    """What one step trained."""

    attempt: int
    episodes: set[str] = field(default_factory=set)


class ImaginedRun:
    """One life, drawn by a seed; ``live`` runs it to its end, and ``check`` says whether it was a good one."""

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.run = RunDirectory(root / f"run-{seed}")
        self.config = self._config()
        self.pace_s = self.draw.choice([10.0, 10.0, 300.0])
        """Of the trainer, at the slowest: it waits for episodes, or they for it."""
        self.attempt, self.served, self.announced, self.trained = 0, -1, -1, 0
        self.played: dict[str, Played] = {}
        self.fallen: set[str] = set()
        """Groups that fell as a whole, or may have."""
        self.unreadable: set[tuple[str, int]] = set()
        """Tasks that could not be read, at some time."""
        self.lineage: dict[int, Trained] = {}
        """What counts, by step."""
        self.process: OrchestratorLife | None = None
        self.up = asyncio.Event()
        self.disturbed = 0
        self.saved_by_notice = 0
        self.generation = 0
        self.ending: Ending | None = None
        self.totals: Counter[str] = Counter()
        self.log: list[str] = []

    # -- what is drawn

    def _config(self) -> OrchestratorConfig:
        draw = self.draw
        groups = draw.randint(1, 4)
        by_tokens = draw.random() < 0.2
        batch = BatchConfig(
            mode=draw.choice(["rl", "rl", "rl", "sft", "opd"]),
            group_size=groups,
            batch_size=None if by_tokens else draw.randint(1, 6),
            token_batch_size=draw.randint(4, 30) if by_tokens else None,
            max_staleness=draw.randint(0, 3),
            oversampling=draw.choice([1.0, 1.0, 1.5, 3.0]),
            seq_len=64,
            num_ranks=draw.randint(1, 2),
        )
        train = [
            environment(name, max_concurrent=draw.randint(max(groups, 2), 12), weight=draw.choice([1.0, 3.0]))
            for name in ("one", "two")[: draw.randint(1, 2)]
        ]
        values = {
            "run_dir": str(self.run.root),
            "seed": draw.randint(0, 9),
            "max_steps": draw.randint(1, 8),
            "batch": batch,
            "train": train,
            "evals": [],
            "checkpoint": CheckpointConfig(interval=draw.randint(1, 4), keep_last=draw.randint(1, 2)),
            "record_episodes": False,
            "max_consecutive_failures": draw.choice([20, 10_000, 10_000]),
        }
        return orchestrator_config(self.run.root).model_copy(update=values)

    @property
    def staleness(self) -> int:
        return self.config.batch.max_staleness

    # -- the life

    async def live(self) -> None:
        """Attempt after attempt, until one ends the run."""
        async with asyncio.timeout(LONGEST_S):
            happenings = asyncio.create_task(self._engines())
            try:
                while not await self._attempt():
                    continue
            finally:
                happenings.cancel()
                await asyncio.gather(happenings, return_exceptions=True)

    async def _attempt(self) -> bool:
        """Whether the run is over."""
        self.attempt += 1
        self.served = self.announced = -1
        identity = RunIdentity("run", UID, self.attempt)
        prepare(self.run, identity)
        prepared = read_prepared(self.run, self.attempt)
        assert prepared is not None
        start = self.trained = prepared.resume_step
        assert start >= self.saved_by_notice, f"step {self.saved_by_notice} was saved after a notice"
        self.lineage = {step: one for step, one in self.lineage.items() if step <= start}
        self.log.append(f"attempt {self.attempt} from {start}")
        gang = asyncio.create_task(self._gang(start), name="gang")
        main = asyncio.create_task(self._processes(identity), name="processes")
        lost = asyncio.create_task(self._disturb(), name="disturb")
        try:
            await asyncio.wait({gang, main, lost}, return_when=asyncio.FIRST_COMPLETED)
            if gang.done() and (told := gang.result()).reason == "notice":
                process = self.process
                if told.checkpoint and process is not None and process.disk.committer.state(told.step) == "committed":
                    self.saved_by_notice = told.step
                return False
            if not lost.done():
                self.ending = await main
                if self.ending.code in {ExitCode.OK, ExitCode.STOPPED}:
                    await gang
        finally:
            for task in (gang, main, lost):
                task.cancel()
            ended = await asyncio.gather(gang, main, lost, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        return lost.cancelled() and self._over()

    def _over(self) -> bool:
        assert self.ending is not None
        self.log.append(f"ended: {self.ending.code}")
        return self.ending.code in {ExitCode.OK, ExitCode.ENVIRONMENT, ExitCode.NOTHING_TO_TRAIN}

    async def _processes(self, identity: RunIdentity) -> Ending:
        """Orchestrators one after the other, each killed but the last."""
        while True:
            self.process = OrchestratorLife(self, identity)
            self.up.set()
            working = asyncio.create_task(self.process.work())
            killed = asyncio.create_task(self.process.killed.wait())
            try:
                await asyncio.wait({working, killed}, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    self.totals = self.process.counters.totals
                    return working.result()
            finally:
                self.up.clear()
                for task in (working, killed, *self.process.calls):
                    task.cancel()
                await asyncio.gather(working, killed, *self.process.calls, return_exceptions=True)
            self.disturbed += 1
            await asyncio.sleep(self.draw.choice([0.0, 3.0]))

    async def _disturb(self) -> None:
        """What happens to the run from outside; returns when its gang is lost."""
        for _ in range(self.draw.choice([0, 0, 1, 2, 4])):
            await asyncio.sleep(self.draw.uniform(0.0, 60.0))
            what = self.draw.choice(["orchestrator", "leave", "gang", "notice", "stop", "edit", "edit"])
            self.log.append(f"{asyncio.get_running_loop().time():.1f} {what}")
            if what == "gang":
                self.disturbed += 1
                return
            process = self.process
            if process is None or not self.up.is_set():
                continue
            if what == "orchestrator":
                process.killed.set()
            elif what == "leave":
                await self._leave(process)
            elif what == "notice":
                if await self._is_dropped_after_notice(process):
                    return
            elif what == "stop":
                self.disturbed += 1
                await process.called(process.stop)
            else:
                await process.called(lambda process=process: self._edit(process))  # type: ignore[misc]
        await asyncio.Event().wait()

    async def _leave(self, process: OrchestratorLife) -> None:
        """The orchestrator is given notice, where it can be while a batch is ready."""
        for _ in range(60):
            if process.holds_a_batch:
                break
            await asyncio.sleep(1.0)
        if process is self.process and self.up.is_set():
            await process.called(process.leave)
            sealed = max(process.disk.store.newest or 0, process.desk.given)
            assert process.rollout.next_step <= sealed + 1, "a batch was taken and not sealed"
            process.killed.set()

    async def _is_dropped_after_notice(self, process: OrchestratorLife) -> bool:
        """The gang is given notice; whether its step is dropped."""
        self.disturbed += 1
        within_s = self.draw.choice([0.0, NOTICE_S])
        report = NoticeReport(attempt=self.attempt, rank=0, within_s=within_s, save_s=3.0)
        reply = await process.called(lambda: process.reports.notice(report))
        self.log.append(f"{reply.step}: {reply.why}")
        return reply.step is None

    async def _edit(self, process: OrchestratorLife) -> None:
        self.generation += 1
        settings = LiveSettings(
            generation=self.generation,
            max_steps=self.draw.randint(1, 10),
            checkpoint=LiveCheckpoints(interval=self.draw.randint(1, 4), keep_last=1),
        )
        try:
            await process.live.accept(settings)
        except LiveRefused:
            self.log.append("edit refused")

    async def _engines(self) -> None:
        """Engines follow the trainer, late, and go at times."""
        while True:
            await asyncio.sleep(self.draw.choice([0.0, 1.0, 5.0]) + 0.5)
            if self.draw.random() < 0.1:
                self.served = -1
                await asyncio.sleep(self.draw.uniform(0.0, 30.0))
            if self.served != self.announced:
                self.served = self.announced
                if self.process is not None:
                    self.process.rollout.wake()

    # -- the ranks

    async def call(self, make: Callable[[OrchestratorLife], Coroutine[Any, Any, T]]) -> T:
        """An answer of whichever orchestrator is up; one that is killed meanwhile is asked again in its successor."""
        while True:
            await self.up.wait()
            process = self.process
            assert process is not None
            try:
                return await process.called(lambda process=process: make(process))  # type: ignore[misc]
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if current is not None and current.cancelling():
                    raise
                await asyncio.sleep(0.1)

    async def _gang(self, start: int) -> StopNotice:
        await self._announce(start)
        ranks = self.config.batch.num_ranks
        barrier = asyncio.Barrier(ranks)
        async with asyncio.TaskGroup() as tasks:
            told = [tasks.create_task(self._rank(rank, start, barrier)) for rank in range(ranks)]
        assert len({one.result().step for one in told}) == 1, "ranks end at different steps"
        return told[0].result()

    async def _announce(self, version: int) -> None:
        announcement: PolicyAnnouncement = policy(version, attempt=self.attempt)
        await self.call(lambda process: process.reports.policy(announcement))
        self.announced = version

    async def _rank(self, rank: int, step: int, barrier: asyncio.Barrier) -> StopNotice:
        saved = {step}
        while True:
            step += 1
            answer = None
            while answer is None:
                answer = await self._pulled(step, rank)
            if isinstance(answer, StopNotice):
                if answer.checkpoint and answer.step not in saved:
                    await self._save(answer.step, rank)
                return answer
            batch = unpack(answer.read_bytes(), RankBatch)
            self._take(batch)
            await barrier.wait()
            if rank == 0:
                await asyncio.sleep(self.draw.uniform(0.0, self.pace_s))
                self.look()
                assert self.trained == step - 1
                self.trained = step
                await self._announce(step)
                report = StepReport(
                    attempt=self.attempt,
                    step=step,
                    metrics={},
                    gap=GAP,
                    trained_tokens=1,
                    packed_tokens=1,
                    seconds={"step": 1.0},
                )
                await self._reported(report)
            await barrier.wait()
            if batch.checkpoint:
                await self._save(step, rank)
                saved.add(step)

    async def _pulled(self, step: int, rank: int) -> Path | StopNotice | None:
        return await self.call(lambda process: process.desk.pull(step, rank, 60.0))

    async def _reported(self, report: StepReport) -> None:
        await self.call(lambda process: process.reports.step(report))

    async def _save(self, step: int, rank: int) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, 3.0))
        lost = self.draw.random() < 0.1
        parts = [] if lost else [write_parts(self.run, step, rank, attempt=self.attempt)]
        error = "no room" if lost else None
        report = PartsReport(attempt=self.attempt, step=step, rank=rank, parts=parts, error=error)

        async def asked(process: OrchestratorLife) -> str:
            return (await process.reports.parts(report)).state

        while await self.call(asked) == "waiting":  # noqa: ASYNC110 - as ranks do it
            await asyncio.sleep(1.0)

    def _take(self, batch: RankBatch) -> None:
        """A rank trains its part of a batch: the oracle of what may be in it."""
        known = self.lineage.setdefault(batch.step, Trained(self.attempt))
        assert known.attempt == self.attempt, f"step {batch.step} is trained twice in one line"
        for micro in batch.micro_batches:
            known.episodes |= {name.rsplit("/", 1)[0] for name in micro.sample_ids if not name.startswith("dummy")}
            actions = micro.role == TokenRole.ACTION
            if self.config.batch.mode != "sft" and actions.any():
                oldest = int(np.asarray(micro.version_low)[actions].min())
                assert batch.step - 1 - oldest <= self.staleness, f"step {batch.step} trains version {oldest}"

    # -- what must hold meanwhile

    def look(self) -> None:
        """Bounds of disk and memory, looked at whenever an episode begins and a step is about to end."""
        sealed = [step for step, _ in self.run.sealed_steps()]
        assert not sealed or sealed[-1] <= self.trained + 1 + self.staleness, (sealed, self.trained)
        if self.process is not None and sealed:
            assert sealed[-1] <= self.process.desk.given + 1, (sealed, self.process.desk.given)
        batch, loaded = self.config.batch, None if self.process is None else self.process.rollout.loaded
        if batch.batch_size is not None and loaded is not None:
            most = batch.oversampling * batch.batch_size * (self.staleness + 1) + batch.group_size
            assert loaded.scheduler.under_way() <= most, (loaded.scheduler.under_way(), most)

    # -- what must hold at the end

    def check(self) -> None:
        """The life was a good one."""
        assert self.ending is not None
        steps = sorted(self.lineage)
        assert steps == list(range(1, len(steps) + 1)), "steps are missing"
        trained = [name for step in steps for name in self.lineage[step].episodes]
        assert len(trained) == len(set(trained)), "an episode is trained twice"
        groups: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for name in trained:
            assert not self.played[name].failed, f"{name} failed and is trained"
            groups[self.played[name].task].add(self.played[name].group)
        assert all(len(found) == 1 for found in groups.values()), "a task is trained twice"
        assert not list(self.run.root.rglob(".tmp-*"))
        if self.ending.code is ExitCode.OK:
            self._check_finished(len(steps), set(groups))
            if not self.disturbed and self.attempt == 1:
                self._check_halves(set(trained))

    def _check_finished(self, last: int, trained: set[tuple[str, int]]) -> None:
        found, _ = checkpoints.committed(self.run)
        assert found[-1].step == last, "the last checkpoint is missing"
        part = next(one for one in found[-1].manifest.parts if one.role == "orchestrator")
        state: SavedState = read_state((found[-1].folder / part.file).read_bytes())
        for one in self.config.train:
            cursor, saved = (
                Cursor(environment=one.name, seed=self.config.seed, length=TASKS),
                state.deck.cursors[one.name],
            )
            tickets = [cursor.take() for _ in range(saved.next)]
            settled = {(one.name, ticket.index) for ticket in tickets if ticket.ordinal not in saved.returned}
            for task in settled - trained:
                assert self._explained(task, last), f"task {task} was passed over"
            back = {(one.name, ticket.index) for ticket in tickets if ticket.ordinal in saved.returned}
            assert not back & trained, "a task is trained and comes back"

    def _explained(self, task: tuple[str, int], last: int) -> bool:
        """Whether some group of the task could not be trained: it failed, fell, or grew too old."""
        groups: defaultdict[str, list[Played]] = defaultdict(list)
        for one in self.played.values():
            if one.task == task:
                groups[one.group].append(one)
        return task in self.unreadable or any(
            group in self.fallen or all(one.failed or one.version + self.staleness + 1 <= last for one in found)
            for group, found in groups.items()
        )

    def _check_halves(self, trained: set[str]) -> None:
        """Of a group that is trained, what is not trained has grown old, or was left over at the end."""
        partly = {self.played[name].group for name in trained}
        left = [
            name for name, one in self.played.items() if one.group in partly and not one.failed and name not in trained
        ]
        assert len(left) <= self.totals["dropped/stale"] + self.totals["dropped/unused"], left
        dropped = sum(count for name, count in self.totals.items() if name.startswith("dropped/"))
        assert len(trained) + dropped <= self.totals["episodes/finished"]
