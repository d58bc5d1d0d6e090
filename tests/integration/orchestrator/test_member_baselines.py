"""Baselines of members in an orchestrator that is a process, dies and resumes."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from echorl_core.checkpoints import committed
from echorl_core.config import (
    AdvantageConfig,
)
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_testing.orchestrator.orchestrator_run import SECOND, Run, check_batches, environment
from echorl_testing.trainer.scripted_trainer import ScriptedTrainer

SUPPORT = str(Path(__file__).parents[2] / "support")


def several_agents(run: Run, **fields: Any) -> None:
    """Two members, of whom ``a`` always gets 1 and ``b`` -1."""
    kind = "import:echorl_testing.orchestrator.talking_members:circle"
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


async def test_an_environment_of_one_agent_does_not_become_one_of_several(run: Run) -> None:
    run.configure(train=[environment("circle")], evals=[], max_steps=2)
    async with run.orchestrator() as process:
        await run.trainer().run()
        assert await process.wait() == ExitCode.OK, run.log.read_text()
    several_agents(run)
    assert prepare(run.directory, SECOND).resume_step == 2
    async with run.orchestrator(identity=SECOND) as process:
        assert await process.wait() == ExitCode.BAD_INPUT
    found = "spec.environments.train[circle].type: found 'import:echorl_testing.orchestrator.talking_members:circle'"
    assert f"{found}, the run was started with 'builtin:digits'" in run.log.read_text().replace("\\'", "'")
