"""A run of the orchestrator as a process, for tests that put an engine and ranks at its wire."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from echorl_core import names
from echorl_core.checkpoints import NO_HISTORY, committed, next_history, verify
from echorl_core.config import (
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    EnvironmentConfig,
    EvalConfig,
    ModelConfig,
    OrchestratorConfig,
    SamplingConfig,
)
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.wire.batch import TokenRole
from echorl_core.wire.reports import NoticeReply, NoticeReport
from echorl_orchestrator.batches.sealing import Seal
from echorl_testing.engines.fake_engine import RUN_UID, TOKEN, FakeEngine
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer
from echorl_testing.ports import free_port
from echorl_testing.trainer.scripted_trainer import ScriptedTrainer
from echorl_testing.warm import Program

IDENTITY = RunIdentity("run", RUN_UID, 1)
SECOND = RunIdentity("run", RUN_UID, 2)
"""Of the run's next attempt."""
DEADLINE_S = 250


def environment(name: str, **fields: Any) -> EnvironmentConfig:
    """One that is played in four tokens."""
    sampling = SamplingConfig(max_completion_tokens=4)
    return EnvironmentConfig(**{"name": name, "type": "builtin:digits", "sampling": sampling, **fields})


class Run:
    """One run directory and the processes of its orchestrator."""

    def __init__(self, root: Path, engine: FakeEngine) -> None:
        self.directory, self.port = RunDirectory(root / "run"), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config_file = root / "orchestrator.json"
        self.log = root / "log"
        self.defaults: dict[str, Any] = {
            "run_dir": str(self.directory.root),
            "port": self.port,
            "model": ModelConfig(
                path=str(write_byte_tokenizer(root / "model")), dtype="float32", max_model_len=128, renderer="compact"
            ),
            "seed": 5,
            "max_steps": 4,
            "batch": {"group_size": 2, "batch_size": 4, "max_staleness": 1, "seq_len": 128, "num_ranks": 2},
            "train": [environment("digits")],
            "evals": [
                EvalConfig(
                    environment=environment("held-out", args={"split": "test"}),
                    interval=2,
                    num_examples=2,
                    group_size=2,
                )
            ],
            "engines": EngineDiscovery(names=[engine.address], interval_s=0.2),
            "weight_mode": "http",
            "checkpoint": CheckpointConfig(interval=2, keep_last=1),
            "record": True,
        }

    def configure(self, *, batch: dict[str, Any] | None = None, **fields: Any) -> None:
        values = {**self.defaults, **fields}
        values["batch"] = BatchConfig(**{**self.defaults["batch"], **(batch or {})})
        OrchestratorConfig(**values).dump(self.config_file)
        prepare(self.directory, IDENTITY)

    @asynccontextmanager
    async def orchestrator(
        self,
        faults: str = "",
        identity: RunIdentity = IDENTITY,
        deadline_s: float = DEADLINE_S,
        variables: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Program]:
        environ = {**os.environ, **identity.environment(), names.ENV_ADMIN_TOKEN: TOKEN, names.ENV_FAULTS: faults}
        environ |= variables or {}
        process = Program("echorl_orchestrator", ["--config", self.config_file], environment=environ, output=self.log)
        try:
            async with asyncio.timeout(deadline_s):
                yield process
        except TimeoutError:
            raise AssertionError(self.log.read_text()[-6000:]) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    def trainer(self, ranks: int = 2) -> ScriptedTrainer:
        return ScriptedTrainer(self.url, IDENTITY, self.directory, ranks=ranks)

    async def state(self, **query: Any) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self.url}/state", params=query) as answer:
                        return dict(await answer.json())
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)

    async def stop(self) -> int:
        headers = {**IDENTITY.headers(), names.HEADER_TOKEN: TOKEN}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/control/stop", headers=headers) as answer,
        ):
            return answer.status

    async def give_notice(self, report: NoticeReport) -> NoticeReply:
        """As a rank does that was given notice."""
        headers = {**IDENTITY.headers(), names.HEADER_TOKEN: TOKEN}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/trainer/notice", headers=headers, data=msgspec.json.encode(report)) as answer,
        ):
            return msgspec.json.decode(await answer.read(), type=NoticeReply)

    async def live(self, generation: int, **settings: Any) -> tuple[int, dict[str, Any]]:
        headers = {**IDENTITY.headers(), names.HEADER_TOKEN: TOKEN}
        body = json.dumps({"generation": generation, **settings})
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/control/live", headers=headers, data=body) as answer,
        ):
            return answer.status, dict(await answer.json())

    async def until_live(self, generation: int) -> dict[str, Any]:
        state = await self.state()
        while state["live_generation"] != generation:
            state = await self.state(since=state["revision"], wait=10)
        return state

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return await answer.text()

    def rows(self, name: str, attempt: int = 1) -> list[dict[str, Any]]:
        path = self.directory.records(attempt) / f"{name}.jsonl"
        return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]

    def seals(self) -> list[Seal]:
        folders = sorted((self.directory.root / "record" / "attempt_1").iterdir())
        return [msgspec.json.decode((folder / "seal.json").read_bytes(), type=Seal) for folder in folders]

    def histories(self) -> dict[int, str]:
        """The chain over the sealed batches, by step."""
        found, history = {}, NO_HISTORY
        for seal in self.seals():
            found[seal.step] = history = next_history(history, seal.digest)
        return found


def check_batches(run: Run, trainer: ScriptedTrainer, steps: int) -> None:
    """What must hold of every run, whatever died in between."""
    assert sorted(trainer.batches) == [(step, rank) for step in range(1, steps + 1) for rank in range(2)]
    assert all(len(found) == 1 for found in trainer.digests.values()), "a rank got other bytes than before"
    assert [seal.step for seal in run.seals()] == list(range(1, steps + 1))
    seen: set[str] = set()
    for seal in run.seals():
        ranks = [trainer.batches[seal.step, rank] for rank in range(2)]
        assert ranks[0].denominators == ranks[1].denominators == seal.denominators
        micro = [one for rank in ranks for one in rank.micro_batches]
        ids = [name for one in micro for name in one.sample_ids if name != "dummy/0"]
        assert sorted(ids) == sorted(seal.sample_ids)
        assert seen.isdisjoint(ids)
        seen |= set(ids)
        actions = np.concatenate([one.role == TokenRole.ACTION for one in micro])
        versions = np.concatenate([one.version_low for one in micro])[actions]
        assert (seal.step - 1 - versions).max() <= 1
        assert seal.denominators["rl"] == np.concatenate([one.rl_weight for one in micro]).astype(bool).sum()
    (checkpoint,) = committed(run.directory)[0]
    verify(checkpoint.folder, checkpoint.manifest)
    assert checkpoint.step == steps
    assert checkpoint.manifest.history == run.histories()[steps]
