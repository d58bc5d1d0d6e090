"""A run of ``builtin:swe`` whose processes are killed: real orchestrator, workers, sandboxes, agents and tests."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.agents_under_faults import victims
from benchmarks.agents_under_faults.engine import FixingEngine
from benchmarks.agents_under_faults.judged import Judged, judged
from benchmarks.agents_under_faults.victims import KINDS, Process
from echorl_core.config import ModelConfig, SamplingConfig, SandboxesConfig
from echorl_core.names import ExitCode
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.environments.builtin.parts.swe.seeded import SeededArgs, seeded_rows
from echorl_testing.orchestrator.orchestrator_run import Run, environment
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer
from echorl_testing.trainer.scripted_trainer import ScriptedTrainer
from echorl_testing.waiting import until
from echorl_testing.warm import Program

SEEDED = {"num_tasks": 64, "functions": 1}
WEIGHTS = {"agent": 5, "grader": 5, "script": 5, "sandbox": 5, "worker": 3, "orchestrator": 1}
"""How often each kind of process is killed, of as many kills as they sum to."""
_GROUP = 4
_REAPED_S = 30.0
"""Within which nothing may be left of who was killed: the period of whoever looks for leftovers in a cluster."""
_VICTIM_S = 120.0
_ENDS_S = 200.0
_LIFE_S = 1800.0


@dataclass
class Killed:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    leaked: int = 0
    """Processes of a killed orchestrator that were there after a period."""
    judged: Judged = field(default_factory=Judged)
    steps: int = 0
    exit_code: int | None = None
    """Of the orchestrator that was told to stop."""

    @property
    def well(self) -> bool:
        """Whether nothing was left, and nothing trained that should not."""
        found = self.judged
        nothing = not (self.leaked or found.falsely_scored or found.trained_twice)
        return nothing and self.exit_code == ExitCode.STOPPED


class Killing:
    """Kills processes of one run, whichever orchestrator it has just then."""

    def __init__(self, run: Run, kills: int, seed: int) -> None:
        self._run, self._chance = run, random.Random(seed)
        drawn = self._chance.choices(KINDS, [WEIGHTS[kind] for kind in KINDS], k=kills)
        self._plan = [*reversed(drawn)]
        self.killed = Killed()

    async def killed_all(self) -> None:
        """Go through the plan, with a new orchestrator after each that was killed; stop the run at its end."""
        while self.killed.exit_code is None:
            async with self._run.orchestrator(deadline_s=_LIFE_S) as orchestrator:
                await self._kill(orchestrator)

    async def _kill(self, orchestrator: Program) -> None:
        seen: set[Process] = set()
        # A worker that dies before there is a run ends the orchestrator, which whoever started it starts again.
        await self._victim(orchestrator, "agent", seen)
        while self._plan and orchestrator.returncode is None:
            kind = self._plan[-1]
            await asyncio.sleep(self._chance.uniform(0.0, 0.4))
            if kind == "orchestrator":
                self._plan.pop()
                self.killed.kills[kind] += 1
                orchestrator.kill()
                await self._ended(orchestrator, seen)
                return
            if victims.kill(await self._victim(orchestrator, kind, seen)):
                self._plan.pop()
                self.killed.kills[kind] += 1
        if orchestrator.returncode is not None:
            log = self._run.log.read_text()[-3000:]
            raise RuntimeError(f"the orchestrator ended by itself, with {orchestrator.returncode}: {log}")
        await self._run.stop()
        self.killed.exit_code = await self._ended(orchestrator, seen)

    async def _victim(self, orchestrator: Program, kind: str, seen: set[Process]) -> Process:
        async with asyncio.timeout(_VICTIM_S):
            while True:
                there = victims.below(orchestrator.pid)
                seen |= there.keys()
                if found := sorted((one for one in there if there[one] == kind), key=lambda one: one.pid):
                    return self._chance.choice(found)
                await asyncio.sleep(0.005)

    async def _ended(self, orchestrator: Program, seen: set[Process]) -> int:
        seen |= victims.below(orchestrator.pid).keys()
        async with asyncio.timeout(_ENDS_S):
            code = await orchestrator.wait()
        try:
            await until(lambda: not any(map(victims.lives, seen)), _REAPED_S)
        except TimeoutError:
            self.killed.leaked += sum(map(victims.lives, seen))
        return code


async def killing(folder: Path, kills: int, seed: int) -> Killed:
    """Kill ``kills`` processes of a run in ``folder``, by a plan drawn from ``seed``, and judge its records."""
    rows = seeded_rows(SeededArgs(**SEEDED))
    tokenizer = TextTokenizer(write_byte_tokenizer(folder / "model"), name="bytes")
    async with FixingEngine(rows, tokenizer, seed) as engine:
        run = Run(folder, engine)
        run.configure(**_settings(folder))
        trainer = run.trainer(ranks=1)
        training = asyncio.create_task(trainer.run())
        action = Killing(run, kills, seed)
        try:
            await action.killed_all()
            async with asyncio.timeout(_ENDS_S):
                await training
        finally:
            training.cancel()
    action.killed.judged = judged(run.directory, rows, _GROUP)
    action.killed.steps = _steps(trainer)
    return action.killed


def _steps(trainer: ScriptedTrainer) -> int:
    return len({step for step, _ in trainer.batches})


def _settings(folder: Path) -> dict[str, Any]:
    swe = environment(
        "swe",
        type="builtin:swe",
        args={"seeded": SEEDED},
        sampling=SamplingConfig(max_completion_tokens=96),
        state_columns=["ended", "verdict", "diff"],
        workers=2,
        episode_timeout_s=120.0,
        max_infrastructure_share=1.0,
    )
    room = SandboxesConfig(cpu=1.0, memory_bytes=1 << 28, disk_bytes=1 << 26, processes=64, concurrency=6, ttl_s=600.0)
    return {
        "model": ModelConfig(path=str(folder / "model"), dtype="float32", max_model_len=1024, renderer="compact"),
        "max_steps": 100_000,
        "batch": {"group_size": _GROUP, "batch_size": 8, "max_staleness": 8, "seq_len": 1024, "num_ranks": 1},
        "train": [swe],
        "evals": [],
        "sandboxes": room,
        "record_episodes": True,
        "record": False,
        "max_consecutive_failures": 10_000,
    }
