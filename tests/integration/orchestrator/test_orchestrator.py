"""The orchestrator as a process, against a fake engine and scripted trainer ranks at the wire."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from pyarrow.parquet import read_table
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from echorl_core import last_words, names
from echorl_core.checkpoints import NO_HISTORY, committed, next_history, verify
from echorl_core.config import (
    AdvantageConfig,
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    EnvironmentConfig,
    EvalConfig,
    FilterConfig,
    ModelConfig,
    MonitorsConfig,
    OrchestratorConfig,
    SamplingConfig,
    WandbConfig,
)
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.wire import StopNotice, TokenRole
from echorl_orchestrator.sealing import Seal
from echorl_testing.fake_engine import RUN_UID, TOKEN, FakeEngine
from echorl_testing.scripted_policy import write_byte_tokenizer
from echorl_testing.scripted_trainer import ScriptedTrainer

IDENTITY = RunIdentity("run", RUN_UID, 1)
SUPPORT = str(Path(__file__).parents[2] / "support")
DEADLINE_S = 150


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(name: str, **fields: Any) -> EnvironmentConfig:
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
        self, faults: str = "", identity: RunIdentity = IDENTITY
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        environ = {**os.environ, **identity.environment(), names.ENV_ADMIN_TOKEN: TOKEN, names.ENV_FAULTS: faults}
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "echorl_orchestrator", "--config", str(self.config_file), env=environ, stderr=log
            )
        try:
            async with asyncio.timeout(DEADLINE_S):
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


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as made:
        yield made


@pytest.fixture
def run(tmp_path: Path, engine: FakeEngine) -> Run:
    return Run(tmp_path, engine)


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


async def test_a_run_to_its_end(run: Run, engine: FakeEngine) -> None:
    run.configure()
    trainer = run.trainer()
    async with run.orchestrator() as process:
        notice = await trainer.run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert notice == StopNotice(reason="finished", step=4, checkpoint=False)
    assert trainer.saved == {2: "committed", 4: "committed"}
    check_batches(run, trainer, 4)
    steps = run.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(row["staleness/all/max"] <= 1 and row["loss/rl"] == 0.5 and row["tokens/trained"] == 10 for row in steps)
    assert all(row["reward/all/mean"] is not None and row["batch/episodes"] == 4 for row in steps)
    evals = run.rows("evals")
    assert [row["step"] for row in evals] == [0, 2, 4]
    assert all(row["episodes"] == 4 and row["errors"] == 0 for row in evals)
    assert {row["version"] for row in run.rows("updates")} >= {0, 4}
    episodes = run.rows("episodes")
    assert {row["kind"] for row in episodes} == {"train", "eval"}
    assert all(row["messages"] and row["turns"] for row in episodes)
    assert engine.held is not None
    assert engine.held["version"] == 4
    assert run.directory.sealed_steps() == []


async def test_a_run_keeps_all_episodes_and_tells_its_monitors_of_which_one_is_out_of_reach(run: Run) -> None:
    unreachable = WandbConfig(project="p", base_url=f"http://127.0.0.1:{free_port()}")
    run.configure(record_episodes=True, monitors=MonitorsConfig(wandb=unreachable, tensorboard=True))
    async with run.orchestrator() as process:
        await run.trainer().run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    for step in range(1, 5):
        rows = read_table(run.directory.episodes(1, step)).to_pylist()
        assert [row["in_batch"] for row in rows] == [True] * 4
        assert all(row["step"] == step and row["environment"] == "digits" for row in rows)
        assert {message["role"] for row in rows for message in json.loads(row["messages"])} >= {"user", "assistant"}
    for version in (0, 2, 4):
        held_out = read_table(run.directory.eval_episodes(1, version, "held-out")).to_pylist()
        (row,) = [row for row in run.rows("evals") if row["step"] == version]
        assert len(held_out) == row["episodes"] > 0
        assert {one["kind"] for one in held_out} == {"eval"}
        assert sum(one["reward"] for one in held_out) / len(held_out) == pytest.approx(row["reward"])
    (events,) = (run.directory.root / "tensorboard" / "attempt_1").iterdir()
    found = {(value.tag, event.step) for event in EventFileLoader(str(events)).Load() for value in event.summary.value}
    assert {("reward/all/mean", step) for step in range(1, 5)} <= found
    assert {("loss/rl", step) for step in range(1, 5)} <= found
    assert {("eval/held-out/reward", step) for step in (0, 2, 4)} <= found


@pytest.mark.faults
@pytest.mark.parametrize(
    "point",
    [
        "before_seal@2",
        "after_seal@2",
        "one_rank_pulled@2",
        "before_manifest",
        "after_manifest",
        "after_manifest@2",
        "before_manifest@2",
        "after_seal@4",
    ],
)
async def test_a_killed_orchestrator_goes_on_where_it_was(run: Run, tmp_path: Path, point: str) -> None:
    run.configure()
    trainer = run.trainer()
    training = asyncio.create_task(trainer.run())
    faults = f"orchestrator.{point}!{tmp_path / 'marker'}"
    async with run.orchestrator(faults) as process:
        assert await process.wait() == -signal.SIGKILL, run.log.read_text()
    async with run.orchestrator(faults) as process:
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    assert [row["step"] for row in run.rows("steps")] == [1, 2, 3, 4]
    assert [row["step"] for row in run.rows("evals")] == [0, 2, 4]


async def test_a_stop_saves_where_the_ranks_are_and_a_new_attempt_goes_on(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert await run.stop() == 200
        assert await run.stop() == 200
        trainer.go_on.set()
        assert await training == StopNotice(reason="stopped", step=3, checkpoint=True)
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    (checkpoint,) = committed(run.directory)[0]
    assert (checkpoint.step, checkpoint.manifest.history) == (3, run.histories()[3])
    second = RunIdentity(IDENTITY.name, IDENTITY.uid, 2)
    assert prepare(run.directory, second).resume_step == 3
    state = msgspec.msgpack.decode((checkpoint.folder / "attempt_1/orchestrator/state.bin").read_bytes())
    assert state["step"] == 3
    dealt = state["deck"]["cursors"]["digits"]
    assert dealt["next"] - len(dealt["returned"]) == 6  # two groups a step were used up


async def test_an_eval_that_a_lost_attempt_did_not_finish_is_told_by_the_next(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert await run.stop() == 200
        trainer.go_on.set()
        assert (await training).step == 3
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    kept = {**run.rows("evals")[0], "step": 2}  # as if the base model's eval had been in flight when all was lost
    (run.directory.records(1) / "evals.jsonl").write_text(json.dumps(kept) + "\n")
    second = RunIdentity(IDENTITY.name, IDENTITY.uid, 2)
    assert prepare(run.directory, second).resume_step == 3
    lost = run.directory.records(2) / "evals.jsonl"
    async with run.orchestrator(identity=second) as process:
        while not (lost.exists() and lost.read_text().endswith("\n")):
            await run.state()
        assert (await run.state())["eval"] == {}
        shown = await run.metrics()
        process.terminate()
        await process.wait()
    (row,) = run.rows("evals", attempt=2)
    assert (row["step"], row["environment"], row["attempt"]) == (0, "held-out", 2)
    assert row["skipped"] == "no attempt has recorded it, and the run resumed from step 3"
    assert 'echorl_orchestrator_evals_skipped_total{environment="held-out"} 1.0' in shown.splitlines()


async def test_a_stop_before_anything_began(run: Run) -> None:
    run.configure()
    async with run.orchestrator() as process:
        await run.state()
        assert await run.stop() == 200
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()
    assert committed(run.directory) == ([], [])


async def test_no_steps_evaluate_the_base_model_and_end(run: Run) -> None:
    run.configure(max_steps=0)
    async with run.orchestrator() as process:
        assert (await run.trainer().run()) == StopNotice(reason="finished", step=0, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert [row["step"] for row in run.rows("evals")] == [0]


async def test_sigterm_ends_it_at_once(run: Run) -> None:
    run.configure()
    async with run.orchestrator() as process:
        await run.state()
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM


async def test_a_taken_port_is_bad_input(run: Run) -> None:
    run.configure()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", run.port))
        holder.listen()
        async with run.orchestrator() as process:
            assert await process.wait() == ExitCode.BAD_INPUT
    assert f"port {run.port} on 127.0.0.1 is taken by another process" in run.log.read_text()


async def followed_failure(run: Run, process: asyncio.subprocess.Process) -> dict[str, Any]:
    """The state's failure, as a supervisor that long-polls sees it."""
    state = await run.state()
    while state["failure"] is None:
        state = await run.state(since=state["revision"], wait=10)
    assert state["phase"] == "Failed"
    assert await process.wait() == state["failure"]["exit_code"], run.log.read_text()
    return dict(state["failure"])


async def test_nothing_to_train_ends_the_run_with_the_reason(run: Run) -> None:
    # The engine always says the same, so every group has one reward and no advantage.
    run.configure(batch={"filters": [FilterConfig(type="zeroAdvantage")], "max_staleness": 3})
    training = asyncio.create_task(run.trainer().run())
    async with run.orchestrator() as process:
        failure = await followed_failure(run, process)
        assert (await training).reason == "failed"
    assert failure["exit_code"] == ExitCode.NOTHING_TO_TRAIN
    assert "step 1: 3 batches in a row had no trainable token" in failure["message"]


async def test_an_environment_that_always_fails_ends_the_run_with_the_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken_env.py").write_text(
        "from echorl_orchestrator.types import Environment\n"
        "class Broken:\n"
        "    def reset(self, task, *, seed, episode_id):\n"
        "        raise RuntimeError('no tree')\n"
        "    def step(self, action): ...\n"
        "    def close(self): ...\n"
        "def make():\n"
        "    return Environment(tasks=[{'key': n} for n in range(4)], text_env=Broken)\n"
    )
    broken = environment("broken", type="import:broken_env:make")
    run.configure(train=[broken], evals=[], python_path=[str(tmp_path)], max_consecutive_failures=6)
    training = asyncio.create_task(run.trainer().run())
    async with run.orchestrator() as process:
        failure = await followed_failure(run, process)
        assert (await training).reason == "failed"
    assert failure["exit_code"] == ExitCode.ENVIRONMENT
    assert "6 episodes failed one after the other" in failure["message"]
    assert "no tree" in failure["message"]


async def test_an_import_that_does_not_resolve_is_bad_input(run: Run) -> None:
    run.configure(train=[environment("lost", type="import:no_such_module:make")])
    async with run.orchestrator() as process:
        assert await process.wait() == ExitCode.BAD_INPUT, run.log.read_text()
    assert "no_such_module" in run.log.read_text()


async def test_a_raised_last_step_takes_effect_after_the_last_batch_was_sealed(run: Run) -> None:
    run.configure(max_steps=2)
    trainer = run.trainer()
    trainer.hold_after = 1
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        state = await run.state()
        while "every batch is sealed" not in state["waiting_for"]:
            state = await run.state(since=state["revision"], wait=10)
        assert (await run.live(5, max_steps=4))[0] == 200
        assert (await run.until_live(5))["max_steps"] == 4
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=4, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    assert [seal.last for seal in run.seals()] == [False, True, False, True]
    assert [row["step"] for row in run.rows("evals")] == [0, 2, 4]


async def test_a_lowered_last_step_ends_the_run_where_it_is_with_a_checkpoint(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=2))
    trainer = run.trainer()
    trainer.hold_after = 3
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        assert (await run.live(1, max_steps=1))[0] == 200
        last = (await run.until_live(1))["max_steps"]
        assert last >= 3, "what is sealed is trained"
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=last, checkpoint=True)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    assert trainer.saved == {last: "committed"}
    assert not any(seal.checkpoint or seal.last for seal in run.seals())
    check_batches(run, trainer, last)
    assert run.rows("evals")[-1]["step"] == last
    second = RunIdentity(IDENTITY.name, IDENTITY.uid, 2)
    assert prepare(run.directory, second).resume_step == last


@pytest.mark.faults
async def test_live_settings_outlive_the_orchestrator(run: Run) -> None:
    run.configure(max_steps=50, checkpoint=CheckpointConfig(interval=20, keep_last=9))
    trainer = run.trainer()
    trainer.hold_after = 2
    training = asyncio.create_task(trainer.run())
    async with run.orchestrator() as process:
        await trainer.held.wait()
        sampling = {"digits": {"temperature": 0.5, "max_completion_tokens": 3}}
        checkpoint = {"interval": 3, "keep_last": 9}
        settings = {"max_steps": 7, "checkpoint": checkpoint, "sampling": sampling, "eval_intervals": {"held-out": 5}}
        assert (await run.live(4, **settings))[0] == 200
        process.kill()
        await process.wait()
    async with run.orchestrator() as process:
        assert (await run.state())["live_generation"] == 4
        assert await run.live(4, **settings) == (200, {"generation": 4, "in_effect": True})
        assert (await run.live(3))[0] == 409
        trainer.go_on.set()
        assert await training == StopNotice(reason="finished", step=7, checkpoint=False)
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    # Batch 3 may have been sealed before the settings came.
    assert set(trainer.saved) - {3} == {6, 7}
    assert [row["step"] for row in run.rows("evals")][-2:] == [5, 7]
    last = trainer.batches[7, 0].micro_batches[0]
    assert set(last.temperature[last.role == TokenRole.ACTION].tolist()) == {0.5}


async def test_settings_that_come_after_the_end_are_refused(run: Run) -> None:
    run.configure(max_steps=50)
    async with run.orchestrator() as process:
        state = await run.state()
        assert state["live_generation"] == 0
        assert await run.stop() == 200
        status, answer = await run.live(2, max_steps=60)
        assert (status, answer) == (409, {"error": "the run is stopping"})
        assert await process.wait() == ExitCode.STOPPED, run.log.read_text()


async def test_its_last_words(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.ENV_TERMINATION_LOG, str(tmp_path / "words"))
    run.configure(max_steps=1)
    async with run.orchestrator() as process:
        await run.trainer().run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    words = last_words.read((tmp_path / "words").read_bytes())
    assert words is not None
    assert (words.role, words.exit_name, words.attempt, words.step) == ("orchestrator", "OK", 1, 1)
    assert words.message == "finished: step 1 is trained, committed and evaluated"
    run.configure(train=[environment("lost", type="import:no_such_module:make")])
    async with run.orchestrator() as process:
        assert await process.wait() == ExitCode.BAD_INPUT
    words = last_words.read((tmp_path / "words").read_bytes())
    assert words is not None
    assert words.exit_name == "BAD_INPUT"
    assert "no_such_module" in words.message


def several_agents(run: Run, **fields: Any) -> None:
    """Two members, of whom ``a`` always gets 1 and ``b`` -1."""
    kind = "import:echorl_testing.talking_members:circle"
    train = [environment("circle", type=kind, args={"tasks": 3})]
    batch = {"advantage": AdvantageConfig(type="rae")}
    run.configure(train=train, evals=[], batch=batch, python_path=[SUPPORT], **fields)


@pytest.mark.faults
async def test_baselines_of_members_move_once_for_each_shipped_unit_though_the_orchestrator_dies(
    run: Run, tmp_path: Path
) -> None:
    several_agents(run)
    trainer = run.trainer()
    training = asyncio.create_task(trainer.run())
    faults = f"orchestrator.after_seal@2!{tmp_path / 'marker'}"
    async with run.orchestrator(faults) as process:
        assert await process.wait() == -signal.SIGKILL, run.log.read_text()
    async with run.orchestrator(faults) as process:
        assert (await training).reason == "finished"
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    check_batches(run, trainer, 4)
    (checkpoint,) = committed(run.directory)[0]
    state = msgspec.msgpack.decode((checkpoint.folder / "attempt_1/orchestrator/state.bin").read_bytes())
    found = {(one["member"], one["task"]): one["value"] for one in state["baselines"]["baselines"]}
    # A baseline that saw its member's reward R n times is (1 - 0.9 ** n) R.
    counts = {key: round(np.log(1 - abs(value)) / np.log(0.9)) for key, value in found.items()}
    for member, sign in (("a", 1.0), ("b", -1.0)):
        shipped = {task: count for (name, task), count in counts.items() if name == member}
        assert sum(shipped.values()) == 4 * 4
        assert all(found[member, task] == pytest.approx(sign * (1 - 0.9**count)) for task, count in shipped.items())
        expected = [sign * 0.9**n for count in shipped.values() for n in range(1, count + 1)]
        assert sorted(advantages_of(trainer, f"/{member}/0")) == pytest.approx(sorted(expected))
    rows = run.rows("steps")
    assert all(row["batch/episodes"] == 4 and row["batch/samples"] == 8 for row in rows)
    assert all((row["reward/circle/a"], row["reward/circle/b"]) == (1.0, -1.0) for row in rows)
    assert all((row["reward/circle/b/max"], row["reward/circle/b/std"]) == (-1.0, 0.0) for row in rows)
    assert all(row["advantage/circle/a/mean"] > 0 > row["advantage/circle/b/mean"] for row in rows)
    episodes = run.rows("episodes")
    assert {row["member"] for row in episodes} == {"a", "b"}
    assert all(len(row["transcript"]) == 4 for row in episodes)


def advantages_of(trainer: ScriptedTrainer, ending: str) -> list[float]:
    """The one advantage of each document whose sample's name ends so."""
    found = []
    for batch in trainer.batches.values():
        for micro in batch.micro_batches:
            ends = np.cumsum(micro.lengths)
            for name, start, end in zip(micro.sample_ids, ends - micro.lengths, ends, strict=True):
                if name.endswith(ending):
                    (value,) = set(micro.advantage[start:end][micro.rl_weight[start:end] != 0].tolist())
                    found.append(value)
    return found


async def test_a_checkpoint_without_baselines_is_not_gone_on_from(run: Run) -> None:
    run.configure(max_steps=2)
    async with run.orchestrator() as process:
        await run.trainer().run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    several_agents(run)
    second = RunIdentity(IDENTITY.name, IDENTITY.uid, 2)
    assert prepare(run.directory, second).resume_step == 2
    async with run.orchestrator(identity=second) as process:
        assert await process.wait() == ExitCode.BAD_INPUT
    assert "environments.circle: the checkpoint to resume from has no RAE baselines (step 2)" in run.log.read_text()
