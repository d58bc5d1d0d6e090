"""Real trainer processes on gloo against an orchestrator at the wire: kills, resumes, full disks, stops."""

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_testing.batches import RUN_UID, record
from echorl_testing.fake_orchestrator import FakeOrchestrator
from echorl_testing.trainer_processes import Gang, trainer_config
from echorl_trainer.seeded import SeededShape, write_seeded_model

SHAPE = SeededShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_seeded_model(folder, SHAPE, seed=1)
    return folder


class Attempts:
    """Runs one attempt after the other in one run directory, as a supervisor would."""

    def __init__(self, folder: Path, model: Path, num_ranks: int) -> None:
        self.folder, self.model, self.num_ranks = folder, model, num_ranks
        self.run = RunDirectory(folder / "run")
        self.gangs: list[Gang] = []

    def orchestrator(self, attempt: int, *, steps: int = 4, interval: int = 2) -> FakeOrchestrator:
        identity = RunIdentity("test", RUN_UID, attempt)
        prepare(self.run, identity)
        return FakeOrchestrator(self.run, identity, steps=steps, num_ranks=self.num_ranks, interval=interval)

    async def start(
        self, orchestrator: FakeOrchestrator, faults: dict[int, str] | None = None, **config: object
    ) -> Gang:
        attempt = orchestrator.identity.attempt
        settings = trainer_config(self.run, self.model, orchestrator.url, **config)
        gang = Gang(self.folder / f"attempt_{attempt}", settings, orchestrator.identity, self.num_ranks)
        self.gangs.append(gang)
        faults = faults or {}
        environment = [{"ECHORL_FAULTS": faults.get(rank, "")} for rank in range(self.num_ranks)]
        return await gang.start("echorl_trainer", environment=environment)

    async def digest(self, name: str, *arguments: str, num_ranks: int | None = None) -> dict[str, object]:
        gang = Gang(self.folder / name, trainer_config(self.run, self.model), None, num_ranks or self.num_ranks)
        self.gangs.append(gang)
        await gang.start("echorl_trainer.replay", "--out", str(self.folder / name), "--device", "cpu", *arguments)
        assert await gang.ended() == [0] * (num_ranks or self.num_ranks), gang.log()
        return json.loads((self.folder / name / "result.json").read_text())


@pytest.fixture
async def two_ranks(tmp_path: Path, model: Path) -> AsyncIterator[Attempts]:
    attempts = Attempts(tmp_path, model, num_ranks=2)
    yield attempts
    for gang in attempts.gangs:
        await gang.stop()


async def test_killed_mid_step_and_mid_save_ends_like_an_uninterrupted_replay(two_ranks: Attempts) -> None:
    async with two_ranks.orchestrator(1) as first:
        first.sealed = 2
        gang = await two_ranks.start(first, {1: "trainer.mid_step@3"})
        await first.until(lambda: first.committed == [2])
        first.sealed = 4
        codes = await gang.ended()
        assert codes[1] == -signal.SIGKILL
        assert codes[0] == ExitCode.CRASH
    assert first.committed == [2]
    async with two_ranks.orchestrator(2) as second:
        gang = await two_ranks.start(second, {0: "trainer.mid_save"})
        assert (await gang.ended())[0] == -signal.SIGKILL
    assert second.committed == []
    async with two_ranks.orchestrator(3) as third:
        gang = await two_ranks.start(third)
        assert await gang.ended() == [0, 0], gang.log()
    assert third.committed == [4]
    assert {step for step, _ in third.pulls} == {3, 4, 5}
    record(two_ranks.folder / "recorded", 4, num_ranks=2)
    resumed = await two_ranks.digest("resumed", "--checkpoint", str(two_ranks.run.checkpoint(4)))
    replayed = await two_ranks.digest("replayed", "--batches", str(two_ranks.folder / "recorded"))
    assert resumed == replayed
    assert resumed["step"] == 4
