"""Real trainer processes on gloo against an orchestrator at the wire: kills, resumes, full disks, stops."""

import asyncio
import errno
import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
import xxhash
from safetensors.torch import load

from echorl_core import names
from echorl_core.checkpoints import committed, verify
from echorl_core.config import ModelConfig, OptimizerConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.run_token import weights_key
from echorl_core.rundir import RunDirectory
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import PolicyAnnouncement, WeightManifest
from echorl_testing import campaign
from echorl_testing.trainer.batches import RUN_UID, record
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import Gang, trainer_config
from echorl_vllm.downloads import Limits
from echorl_vllm.spool import Fetched, fetch
from echorl_vllm.staging import Stager
from echorl_vllm.validation import model_form

TERMINATED = 128 + signal.SIGTERM
ADAM = OptimizerConfig(lr=1e-3)
HALF_MUON = OptimizerConfig(type="muon", lr=1e-3, weight_decay=0.1, state_dtype="bfloat16", cpu_offload=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


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

    def start(self, orchestrator: FakeOrchestrator, faults: dict[int, str] | None = None, **config: object) -> Gang:
        attempt = orchestrator.identity.attempt
        settings = trainer_config(self.run, self.model, orchestrator.url, **config)
        gang = Gang(self.folder / f"attempt_{attempt}", settings, orchestrator.identity, self.num_ranks)
        self.gangs.append(gang)
        faults = faults or {}
        environment = [{"ECHORL_FAULTS": faults.get(rank, "")} for rank in range(self.num_ranks)]
        return gang.start("echorl_trainer", environment=environment)

    async def replay(
        self, name: str, *arguments: str, num_ranks: int | None = None, **config: object
    ) -> dict[str, object]:
        settings = trainer_config(self.run, self.model, **config)
        gang = Gang(self.folder / name, settings, None, num_ranks or self.num_ranks)
        self.gangs.append(gang)
        gang.start("echorl_trainer.replay", "--out", str(self.folder / name), "--device", "cpu", *arguments)
        assert await gang.ended() == [0] * (num_ranks or self.num_ranks), gang.log()
        return json.loads((self.folder / name / "result.json").read_text())


@pytest.fixture
async def attempts(request: pytest.FixtureRequest, tmp_path: Path, model: Path) -> AsyncIterator[Attempts]:
    attempts = Attempts(tmp_path, model, num_ranks=request.param)
    yield attempts
    for gang in attempts.gangs:
        await gang.stop()


def fifo(folder: Path) -> Path:
    """What a fault point is held by."""
    os.mkfifo(folder / "held")
    return folder / "held"


def let_go(held: Path) -> bool:
    """Let the process go on that is held by a FIFO; False if none is, yet."""
    try:
        os.close(os.open(held, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        assert error.errno == errno.ENXIO  # noqa: PT017 - any other is the test's own
        return False
    return True


def trained(orchestrator: FakeOrchestrator, step: int) -> bool:
    return any(report.step == step for report in orchestrator.reports)


def fetched(url: str, path: str | None = None) -> bytes:
    parts = urlsplit(url)
    connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    connection.request("GET", path or parts.path, headers={names.HEADER_TOKEN: weights_key(TOKEN)})
    response = connection.getresponse()
    assert response.status == 200
    return response.read()


@pytest.mark.faults
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("attempts", [2], indirect=True)
async def test_killed_mid_step_and_mid_save_ends_like_an_uninterrupted_replay(attempts: Attempts) -> None:
    async with attempts.orchestrator(1, steps=6) as first:
        first.sealed = 2
        gang = attempts.start(first, {1: "trainer.mid_step@3"})
        await first.until(lambda: first.committed == [2])
        first.sealed = 6
        assert await gang.ended() == [ExitCode.CRASH, -signal.SIGKILL], gang.log()
    async with attempts.orchestrator(2, steps=6) as second:
        second.sealed = 5
        gang = attempts.start(second, {0: f"trainer.mid_save=hold!{fifo(attempts.folder)}"})
        await second.until(lambda: trained(second, 5))
        gang.processes[0].kill()
        second.sealed = 6
        assert await gang.ended() == [-signal.SIGKILL, ExitCode.CRASH], gang.log(1)
    assert (first.committed, second.committed) == ([2], [])
    async with attempts.orchestrator(3, steps=6) as third:
        gang = attempts.start(third)
        assert await gang.ended() == [ExitCode.OK, ExitCode.OK], gang.log()
    assert third.committed == [4, 6]
    assert {step for step, _ in third.pulls} == {3, 4, 5, 6, 7}, "resumed after the committed step"
    record(attempts.folder / "recorded", 6, num_ranks=2)
    replayed = await attempts.replay("replayed", "--batches", str(attempts.folder / "recorded"))
    # Read by one rank, so this also says that a checkpoint does not depend on the number of ranks.
    resumed = await attempts.replay("resumed", "--checkpoint", str(attempts.run.checkpoint(6)), num_ranks=1)
    assert resumed == replayed
    assert resumed["step"] == 6


@pytest.mark.parametrize("attempts", [2], indirect=True)
@pytest.mark.parametrize("optimizer", [ADAM, HALF_MUON], ids=["adamw", "muon in bfloat16, host memory"])
async def test_steps_go_on_beside_a_held_write_which_holds_the_step_that_it_was_begun_at(
    attempts: Attempts, optimizer: OptimizerConfig
) -> None:
    async with attempts.orchestrator(1, steps=6) as orchestrator:
        orchestrator.sealed = 5
        held = fifo(attempts.folder)
        gang = attempts.start(orchestrator, {1: f"trainer.before_save@2=hold!{held}"}, optimizer=optimizer)
        await orchestrator.until(lambda: trained(orchestrator, 5))
        assert orchestrator.committed == [2]
        assert not orchestrator.parts[4], "the other rank's metadata waits too"
        await orchestrator.until(lambda: let_go(held))
        await orchestrator.until(lambda: orchestrator.committed == [2, 4])
        orchestrator.sealed = 6
        assert await gang.ended() == [ExitCode.OK, ExitCode.OK], gang.log()
    record(attempts.folder / "recorded", 6, num_ranks=2)
    batches = ("--batches", str(attempts.folder / "recorded"))
    replayed = await attempts.replay("replayed", *batches, "--steps", "4", optimizer=optimizer)
    checkpoint = str(attempts.run.checkpoint(4))
    assert await attempts.replay("read", "--checkpoint", checkpoint, num_ranks=1, optimizer=optimizer) == replayed


@pytest.mark.parametrize("attempts", [1], indirect=True)
async def test_exports_of_the_weights_are_whole_whatever_ends_the_trainer(attempts: Attempts) -> None:
    settings = {"weights_only_every": 2, "weights_only_keep_last": 2}
    async with attempts.orchestrator(1, steps=8, interval=5) as orchestrator:
        orchestrator.sealed = 4
        gang = attempts.start(orchestrator, {0: "trainer.mid_export@2"}, **settings)
        assert await gang.ended() == [-signal.SIGKILL]
    exports = attempts.run.export(0).parent
    assert sorted(one.name for one in exports.iterdir()) == [".tmp-step_000004", "step_000002"]
    async with attempts.orchestrator(2, steps=8, interval=5) as orchestrator:
        held = fifo(attempts.folder)
        gang = attempts.start(orchestrator, {0: f"trainer.mid_export@4=hold!{held}"}, **settings)
        await orchestrator.until(lambda: (9, 0) in orchestrator.pulls)
        assert sorted(one.name for one in exports.iterdir() if one.name[0] != ".") == ["step_000004", "step_000006"]
        await orchestrator.until(lambda: let_go(held), 60)
        assert await gang.ended() == [ExitCode.OK], gang.log()
    assert sorted(one.name for one in exports.iterdir()) == ["step_000006", "step_000008"]
    saved = attempts.run.checkpoint(8) / "attempt_2" / "weights"
    weights = exports / "step_000008"
    assert {file.name: file.read_bytes() for file in weights.iterdir()} == {
        file.name: file.read_bytes() for file in saved.iterdir()
    }
    assert (weights / "tokenizer.json").is_file()


class Reader:
    """What an engine's worker does with what is announced, in a spool of its own."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        spool.mkdir()

    async def read(self, announced: PolicyAnnouncement) -> Fetched:
        request = StageRequest(
            attempt=1, version=announced.version, url=announced.url, digest=announced.digest, deadline_s=60
        )
        headers = {names.HEADER_TOKEN: weights_key(TOKEN)}
        limits = Limits(deadline=time.monotonic() + 60)
        return await asyncio.to_thread(fetch, self.spool, request, run_uid=RUN_UID, headers=headers, limits=limits)


@pytest.mark.parametrize("attempts", [1], indirect=True)
@pytest.mark.parametrize("mode", ["http", "disk"])
async def test_readers_that_hold_the_version_before_fetch_what_has_changed(attempts: Attempts, mode: str) -> None:
    model = ModelConfig(path=str(attempts.model), dtype="bfloat16", max_model_len=128, renderer="engine")
    steady, late, skipping, damaged = (
        Reader(attempts.folder / name) for name in ("steady", "late", "skipping", "damaged")
    )
    async with attempts.orchestrator(1, steps=3, interval=9) as orchestrator:
        found = {}
        for version in range(3):
            orchestrator.sealed = version
            if version == 0:
                gang = attempts.start(orchestrator, model=model, weight_mode=mode, optimizer=OptimizerConfig(lr=1e-6))
            await orchestrator.until(lambda: len(orchestrator.announcements) > orchestrator.sealed)
            announced = orchestrator.announcements[version]
            readers = {0: (steady, skipping), 1: (steady, damaged), 2: (steady, skipping, late, damaged)}[version]
            if version == 2:
                (spooled,) = damaged.spool.glob("*/model.safetensors")
                spooled.write_bytes(spooled.read_bytes()[:-2] + b"xx")
            for reader in readers:
                found[reader, version] = await reader.read(announced)
            if version:
                assert found[steady, version].delta == "used"
                assert 0 < found[steady, version].received_bytes < announced.size_bytes / 8
                assert announced.delta is not None
                assert announced.delta.size_bytes == found[steady, version].received_bytes
                assert 0 < announced.delta.changed_ratio < 0.1
        assert [found[one, 2].delta for one in (skipping, late, damaged)] == ["no_base", "no_base", "refused"]
        files = {(found[one, 2].folder / "model.safetensors").read_bytes() for one in (steady, skipping, late, damaged)}
        assert len(files) == 1, "all hold the same bytes, however they came by them"
        if mode == "http":
            metrics = (await asyncio.to_thread(fetched, announced.url, "/metrics")).decode()
            sizes = [one.delta.size_bytes for one in orchestrator.announcements[1:] if one.delta is not None]
            assert f"echorl_trainer_publish_delta_bytes_total {float(sum(sizes))}" in metrics
            sent = float(sizes[0] + 2 * sizes[1])
            assert f'echorl_trainer_sent_weight_bytes_total{{kind="delta"}} {sent}' in metrics
        orchestrator.sealed = 3
        assert await gang.ended() == [ExitCode.OK], gang.log()


@campaign.ALL
@pytest.mark.parametrize("attempts", [1], indirect=True)
async def test_versions_are_broadcast_to_a_worker_that_asks(attempts: Attempts) -> None:
    tied = json.loads((attempts.model / "config.json").read_text())["tie_word_embeddings"]
    form = model_form(attempts.model, tied=tied)
    stager = Stager(
        spool=attempts.folder / "spool",
        run_uid=RUN_UID,
        headers={names.HEADER_TOKEN: weights_key(TOKEN)},
        form=lambda: form,
    )
    async with attempts.orchestrator(1, steps=3, interval=9) as orchestrator:
        gang = attempts.start(orchestrator, weight_mode="nccl")
        for version in range(3):
            orchestrator.sealed = version
            await orchestrator.until(lambda: len(orchestrator.announcements) > orchestrator.sealed)
            announced = orchestrator.announcements[version]
            assert (announced.broadcast, announced.delta) == (True, None)
            request = StageRequest(
                attempt=1,
                version=version,
                url=announced.url,
                digest=announced.digest,
                deadline_s=60,
                broadcast=announced.broadcast,
            )
            stager.stage(request)
            await orchestrator.until(lambda: stager.status().state != "staging", 60)
            status = stager.status()
            assert (status.state, status.error, status.broadcast) == ("staged", None, True)
            assert stager.take(request.policy).tensors.keys() == form.tensors.keys()
        metrics = (await asyncio.to_thread(fetched, announced.url, "/metrics")).decode()
        assert 'echorl_trainer_sent_weight_bytes_total{kind="broadcast"} 0.0' not in metrics
        orchestrator.sealed = 3
        assert await gang.ended() == [ExitCode.OK], gang.log()


@pytest.mark.faults
@pytest.mark.parametrize("attempts", [1], indirect=True)
async def test_full_disk_keeps_the_old_checkpoint_and_training_goes_on(attempts: Attempts) -> None:
    async with attempts.orchestrator(1, steps=6) as orchestrator:
        orchestrator.sealed = 2
        gang = attempts.start(orchestrator)
        await orchestrator.until(lambda: orchestrator.committed == [2])
        # Enough for a published version, too little for a shard with two moments a weight.
        resource.prlimit(gang.processes[0].pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
        orchestrator.sealed = 5
        await orchestrator.until(lambda: orchestrator.abandoned == [4])
        await orchestrator.until(lambda: [one.step for one in orchestrator.reports] == [1, 2, 3, 4, 5])
        error = orchestrator.parts[4][0].error
        assert error is not None
        assert "File too large" in error
        assert "checkpoint could not be saved" in gang.log()
        found, problems = committed(attempts.run)
        assert ([one.step for one in found], problems) == ([2], [])
        verify(found[0].folder, found[0].manifest)
        assert not list((attempts.run.checkpoint(4) / "attempt_1").rglob("*.distcp")), "the partial shard is removed"
        await fetched_weights_are_what_was_announced(orchestrator)
        assert not list(gang.folder.rglob("*.safetensors")), "versions are in memory alone"
        gang.processes[0].terminate()
        assert await gang.ended(45) == [TERMINATED]
        assert "secret-token" not in gang.log()


async def fetched_weights_are_what_was_announced(orchestrator: FakeOrchestrator) -> None:
    newest = orchestrator.announcements[-1]
    manifest = await asyncio.to_thread(fetched, newest.url)
    assert hashlib.sha256(manifest).hexdigest() == newest.digest
    described = msgspec.json.decode(manifest, type=WeightManifest)
    assert described.version == 5
    for file in described.files:
        data = await asyncio.to_thread(fetched, newest.url.replace("manifest.json", file.name))
        assert len(data) == file.size
        tensors = load(data)
        assert tensors.keys() == {name for name, info in described.tensors.items() if info.file == file.name}
        for name, tensor in tensors.items():
            assert xxhash.xxh3_128_hexdigest(tensor.numpy()) == described.tensors[name].xxh3
