"""The examples of modes sft and opd in short forms: real processes from the manifest to committed weights."""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_cli.local.machine import Machine
from echorl_core import checkpoints
from echorl_core.names import ExitCode
from echorl_orchestrator.environments.builtin.parts.terminal_policy import demonstrate
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs, TerminalTasks
from echorl_testing import campaign
from echorl_testing.local.local_run import LocalRun, local_run, longer_run, write_model
from echorl_testing.manifests.documents import with_value
from echorl_testing.orchestrator.fake_teacher import FakeTeacher, teaching
from echorl_testing.ports import free_port
from examples.opd.teacher import serving

pytestmark = pytest.mark.timeout(900)

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = ["given conversations", "a file of conversations", "a teacher without logprobs", "killed, held in memory"]
"""Without an engine, or with none of its work: every run of the tests makes one of them."""
NO_SAMPLES = ("mismatch_kl/all", "entropy/all", "ratio/mean", "gap/max_abs", "loss/rl", "version/low")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("modes") / "model")


def short(name: str, model: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The example with a few steps of small batches."""
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    small = {
        "spec.model.name": str(model),
        "spec.maxSteps": 3,
        "spec.algorithm.batchSize": 8,
        "spec.checkpoint": {"interval": 2, "keepLast": 2},
    }
    for path, value in {**small, **changes}.items():
        document = with_value(document, path, value)
    return document


def steps(run: LocalRun) -> list[dict[str, Any]]:
    rows = (run.directory.records(1) / "steps.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


def finished(run: LocalRun, deadline_s: float, faults: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Rows of a run that came to its end with its last step committed."""
    code = run.start(faults).ended(deadline_s)
    assert code == ExitCode.OK, run.output()[-4000:]
    assert run.directory.last_attempt() == 1
    found, _ = checkpoints.committed(run.directory)
    assert found[-1].manifest.step == 3
    return steps(run)


@campaign.campaign_mark("modes", RUNS, 1, RUNS[0])
def test_sft_learns_given_conversations_without_an_engine(tmp_path: Path, model: Path) -> None:
    with local_run(tmp_path, short("sft", model, {"spec.environments.train.0.args.num_tasks": 16})) as run:
        rows = finished(run, 600)
    assert [row["batch/episodes"] for row in rows] == [8, 8, 8]
    assert rows[0]["loss/ce"] > rows[-1]["loss/ce"] > 0
    assert all(row[name] is None for row in rows for name in NO_SAMPLES)
    assert all(row["denominator/ce"] == row["tokens/trained"] for row in rows)
    assert not list(run.directory.logs(1).glob("inference*"))
    assert not (run.root / "engine-0").exists()


@pytest.mark.faults
@campaign.campaign_mark("modes", RUNS, 1, RUNS[3])
def test_a_killed_rank_goes_on_in_its_attempt_from_memory(tmp_path: Path, model: Path) -> None:
    checkpoint = {"interval": 3, "keepLast": 2, "memory": {"limit": "1Gi"}}
    changes = {"spec.environments.train.0.args.num_tasks": 16, "spec.checkpoint": checkpoint}
    with local_run(tmp_path, short("sft", model, changes)) as run:
        rows = finished(run, 600, {"trainer.mid_step": "@3"})
        assert (run.markers / "trainer.mid_step").exists()
        assert run.state()["restarts_by_cause"] == {"trainer": 1}
    assert [row["step"] for row in rows] == [1, 2, 3]


@campaign.campaign_mark("modes", RUNS, 1, RUNS[1])
def test_sft_learns_a_file_of_conversations_and_what_tools_answered(tmp_path: Path, model: Path) -> None:
    args = TerminalArgs(num_tasks=8)
    code = tmp_path / "code"
    code.mkdir()
    rows = [{"messages": demonstrate(task, args, seed=0, mix={"find": 1.0}).messages} for task in TerminalTasks(args)]
    (code / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = {"name": "talks", "type": "builtin:messages", "args": {"path": "talks.jsonl"}}
    changes = {
        "spec.environments.train": [environment],
        "spec.algorithm.sft": {"trainRoles": ["tool"], "toolNames": ["cat"]},
        "spec.code": {"path": str(code)},
    }
    with local_run(tmp_path, short("sft", model, changes)) as run:
        found = finished(run, 600)
    texts = [message["content"] for row in rows for message in row["messages"] if message.get("name") == "cat"]
    # Every batch holds every conversation once; a byte is a token.
    assert [row["denominator/ce"] for row in found] == [sum(map(len, texts))] * 3


@campaign.campaign_mark("modes", RUNS, 1, RUNS[2])
async def test_a_teacher_without_logprobs_ends_the_run_by_name_with_nothing_done(tmp_path: Path, model: Path) -> None:
    async with teaching(FakeTeacher(with_logprobs=False)) as teacher:
        changes = {"spec.algorithm.teacher": {"url": teacher.url, "model": "big"}, "spec.environments.eval": []}
        with local_run(tmp_path, short("opd", model, changes)) as run:
            code = await asyncio.to_thread(run.start().ended, 600)
            output = run.output()
    assert code == ExitCode.BAD_INPUT
    assert re.search(r"spec.algorithm.teacher: .*prompt_logprobs for 0 of", output)
    assert not list(run.directory.root.glob("batches/*"))


@longer_run("a real teacher")
@pytest.mark.vllm
def test_opd_learns_from_a_real_teacher(tmp_path: Path, model: Path) -> None:
    better = write_model(tmp_path / "teacher")
    with serving(Machine.look(os.environ).inference_python, better, tmp_path / "work", port=free_port()) as url:
        changes = {"spec.algorithm.teacher": {"url": url, "model": "teacher"}, "spec.environments.eval": []}
        with local_run(tmp_path, short("opd", model, changes)) as run:
            rows = finished(run, 600)
    # The teacher has the policy's own weights: at first they agree, engine against engine.
    assert abs(rows[0]["teacher_kl/all"]) < 1e-3
    assert rows[0]["gap/tokens"] > 0
    assert all(row["loss/ce"] is None for row in rows)
