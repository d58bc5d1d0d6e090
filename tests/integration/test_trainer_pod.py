"""Pods of real trainer ranks on gloo, against an orchestrator at the wire: one rank's end is its pod's end."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from echorl_core.config import MemoryConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_core.termination_message import TerminationMessage, read
from echorl_testing import campaign
from echorl_testing.ports import free_port
from echorl_testing.trainer.batches import RUN_UID, record
from echorl_testing.trainer.fake_orchestrator import TOKEN, FakeOrchestrator
from echorl_testing.trainer.tiny_learner import tiny_model
from echorl_testing.trainer.trainer_processes import REPOSITORY, Gang, trainer_config
from echorl_trainer.mirror import Unreachable
from echorl_trainer.mirror_http import NextPod

TERMINATED = 128 + signal.SIGTERM
IDENTITY = RunIdentity("test", RUN_UID, 1)
PODS = [
    "trains",
    "killed",
    "two pods",
    "terminated",
    "noticed",
    "noticed late",
    "bad input",
    "in place",
    "in place, two pods",
    "replaced",
    "first replaced",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


class Pods:
    """All pods of one gang of two ranks, on one machine."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.run = RunDirectory(folder / "run")
        self.processes: list[Process] = []
        self._started: dict[int, tuple[list[str], dict[str, str]]] = {}
        """Command and variables, by pod."""
        self.left: list[int] = []
        """Process ids of ranks that outlive their pods."""
        prepare(self.run, IDENTITY)

    def orchestrator(self, steps: int, num_ranks: int = 2) -> FakeOrchestrator:
        return FakeOrchestrator(self.run, IDENTITY, steps=steps, num_ranks=num_ranks, interval=2)

    async def start(
        self,
        url: str,
        *,
        pods: int,
        fault: str = "",
        faulty: int = 1,
        grace_s: int | None = None,
        num_ranks: int = 2,
        **settings: object,
    ) -> None:
        """``fault``: of the first ``faulty`` pods."""
        config = self.folder / "trainer.json"
        # As in a cluster, where every pod has an address of its own.
        trainer_config(self.run, self.model, url, publish_host="0.0.0.0", **settings).dump(config)
        port, gang_ports = free_port(), [free_port() for _ in range(pods)]
        for index in range(pods):
            variables = {
                **{key: value for key, value in os.environ.items() if not key.startswith("ECHORL_")},
                **IDENTITY.environment(),
                "ECHORL_ADMIN_TOKEN": TOKEN,
                "ECHORL_PODS": str(pods),
                "ECHORL_POD_INDEX": str(index),
                "ECHORL_RANKS_PER_POD": str(num_ranks // pods),
                "ECHORL_ADVERTISE_HOST": "localhost",
                "ECHORL_TERMINATION_LOG": str(self.words_file(index)),
                "ECHORL_FAULTS": fault if index < faulty else "",
                **({} if grace_s is None else {"ECHORL_GRACE_S": str(grace_s)}),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "ECHORL_GANG_PORT": str(gang_ports[0]),
                "ECHORL_GANG_MEMBERS": ",".join(f"127.0.0.1:{one}" for one in gang_ports),
                "OMP_NUM_THREADS": "1",
                "TMPDIR": str(self.folder),
            }
            command = [sys.executable, "-m", "echorl_trainer.pod", "--config", str(config)]
            self._started[index] = command, variables
            self.processes.append(await self._process(index))

    async def _process(self, index: int) -> Process:
        command, variables = self._started[index]
        with (self.folder / f"pod_{index}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(*command, env=variables, stdout=log, stderr=log, cwd=REPOSITORY)

    def mirrored(self, step: int, pods: int) -> bool:
        """Whether every pod's neighbour holds the step of all its ranks."""
        members = self._started[0][1]["ECHORL_GANG_MEMBERS"].split(",")
        for member in members[:pods]:
            try:
                held = NextPod("127.0.0.1", int(member.rpartition(":")[2]), IDENTITY, TOKEN).steps(-1)
            except Unreachable:
                return False
            if not all(step in steps for steps in held.values()):
                return False
        return True

    async def trained_to(self, step: int, orchestrator: FakeOrchestrator, pods: int) -> None:
        """Step by step: one that comes before the neighbours hold the one before is not sent to them."""
        while not self.mirrored(step, pods):
            await orchestrator.until(lambda: self.mirrored(orchestrator.sealed, pods))
            orchestrator.sealed = min(step, orchestrator.sealed + 1)

    async def replace(self, way: str, *indices: int) -> None:
        """Others take the place of pods.

        ``way``: "lose": all processes of these are gone at once, as when their node is; "drain": they are told to end;
        "leave": their ranks stand still, and may work on later, as on a node that was given up.
        """
        for index in indices:
            process = self.processes[index]
            ranks = [int(one) for one in children_of(process.pid)]
            if way == "drain":
                process.terminate()
                await process.wait()
                continue
            process.kill()
            for rank in ranks:
                os.kill(rank, signal.SIGKILL if way == "lose" else signal.SIGSTOP)
            self.left += ranks if way == "leave" else []
            await process.wait()
        for index in indices:
            self.processes[index] = await self._process(index)

    def words_file(self, index: int) -> Path:
        return self.folder / f"words_{index}.json"

    def words(self, index: int = 0) -> TerminationMessage:
        words = read(self.words_file(index).read_bytes())
        assert words is not None
        return words

    def log(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("pod_*.log")))

    def ranks(self) -> list[int]:
        """Process ids of the first pod's ranks, in order of their ranks (ids begin anew at a machine's highest)."""
        pid = self.processes[0].pid
        environs = {int(child): Path(f"/proc/{child}/environ").read_bytes().split(b"\0") for child in children_of(pid)}
        by_rank = {b"RANK=%d" % rank: rank for rank in range(2)}
        return sorted(environs, key=lambda one: next(by_rank[entry] for entry in environs[one] if entry in by_rank))

    async def ended(self, seconds: float = 240.0) -> list[int]:
        return await asyncio.wait_for(asyncio.gather(*(process.wait() for process in self.processes)), seconds)

    async def stop(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.terminate()
        for rank in filter(is_alive, self.left):
            os.kill(rank, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in self.processes))


@pytest.fixture
async def gang(tmp_path: Path, model: Path) -> AsyncIterator[Pods]:
    gang = Pods(tmp_path, model)
    yield gang
    await gang.stop()


@campaign.campaign_mark("pods", PODS, 1, "trains")
async def test_a_pod_of_two_ranks_trains_to_the_end(gang: Pods) -> None:
    async with gang.orchestrator(2) as orchestrator:
        await gang.start(orchestrator.url, pods=1)
        assert await gang.ended() == [ExitCode.OK], gang.log()
    assert orchestrator.committed == [2]
    assert {rank for _, rank in orchestrator.pulls} == {0, 1}
    assert (gang.words().message, gang.words().step) == ("2 ranks finished", 2)
    hosts = {urlsplit(one.url).hostname for one in orchestrator.announcements}
    assert hosts == {"localhost"}, "engines are told the name that the pod is reached by"


@campaign.campaign_mark("pods", PODS, 1, "killed")
@pytest.mark.faults
async def test_a_killed_rank_ends_its_pod(gang: Pods) -> None:
    async with gang.orchestrator(4) as orchestrator:
        orchestrator.sealed = 1
        await gang.start(orchestrator.url, pods=1)
        await orchestrator.until(lambda: [one.step for one in orchestrator.reports] == [1])
        ranks = gang.ranks()
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        assert await gang.ended() == [128 + signal.SIGKILL], gang.log()
    words = gang.words()
    assert (words.role, words.attempt, words.rank) == ("trainer", 1, 1)
    assert words.message == "rank 1 was ended by SIGKILL without a word"
    assert not any(os.path.exists(f"/proc/{rank}") for rank in ranks)  # noqa: ASYNC240, PTH110 - no file system
    assert "secret-token" not in gang.log()


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param(1, marks=campaign.campaign_mark("pods", PODS, 1, "in place"), id="one pod"),
        pytest.param(2, marks=campaign.campaign_mark("pods", PODS, 1, "in place, two pods"), id="two pods"),
    ],
)
@pytest.mark.faults
async def test_killed_ranks_go_on_in_place_from_memory_as_if_nothing_had_been(
    gang: Pods, tmp_path: Path, pods: int
) -> None:
    memory = MemoryConfig(limit_bytes=2**30, backoff_s=0.1)
    async with gang.orchestrator(6) as orchestrator:
        orchestrator.interval = 100
        # In the third step; then, in the processes after it, while one copy of the third is whole and one is not.
        marks = [tmp_path / "in a step", tmp_path / "in a copy"]
        fault = f"trainer.mid_step@3!{marks[0]},trainer.before_hold@3!{marks[1]}"
        await gang.start(orchestrator.url, pods=pods, fault=fault, faulty=pods, memory=memory)
        assert await gang.ended() == [ExitCode.OK] * pods, gang.log()
        assert [one.count for one in orchestrator.restarts] == [1, 2], gang.log()
        assert all("was ended by signal 9" in one.reason and one.step > 0 for one in orchestrator.restarts)
    assert orchestrator.committed == [6]
    assert {report.step for report in orchestrator.reports} == {1, 2, 3, 4, 5, 6}
    assert {gang.words(index).message for index in range(pods)} == {f"{2 // pods} ranks finished"}
    record(tmp_path / "recorded", 6, num_ranks=2)
    batches = ("--batches", str(tmp_path / "recorded"))
    through = await replayed(gang, tmp_path / "through", *batches, ranks=2)
    ended = await replayed(gang, tmp_path / "ended", "--checkpoint", str(gang.run.checkpoint(6)), ranks=1)
    assert ended == through


def is_alive(pid: int) -> bool:
    """Whether a process that is not ours has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


@pytest.mark.parametrize(
    ("pods", "lost", "ways"),
    [
        pytest.param(
            2, (1,), ("lose", "drain"), marks=campaign.campaign_mark("pods", PODS, 1, "replaced"), id="two pods"
        ),
        pytest.param(
            2, (0,), ("lose", "drain"), marks=campaign.campaign_mark("pods", PODS, 1, "first replaced"), id="the first"
        ),
        pytest.param(2, (1,), ("leave", "lose"), marks=campaign.ALL, id="a lost pod works on"),
        pytest.param(4, (0, 2), ("lose", "lose"), marks=campaign.ALL, id="the first and another one of four pods"),
        pytest.param(4, (1, 3), ("lose", "lose"), marks=campaign.ALL, id="two of four pods"),
    ],
)
@pytest.mark.faults
async def test_another_pod_takes_the_place_of_a_lost_one_as_if_nothing_had_been(
    gang: Pods, tmp_path: Path, pods: int, lost: tuple[int, ...], ways: tuple[str, str]
) -> None:
    memory = MemoryConfig(limit_bytes=2**30, mirror=True)
    async with gang.orchestrator(7, pods) as orchestrator:
        orchestrator.interval, orchestrator.sealed = 100, 1
        await gang.start(orchestrator.url, pods=pods, num_ranks=pods, grace_s=200, memory=memory)
        await gang.trained_to(3, orchestrator, pods)
        others = {index: gang.processes[index].pid for index in range(pods) if index not in lost}
        await gang.replace(ways[0], *lost)
        await orchestrator.until(lambda: bool(orchestrator.restarts))
        (restart,) = orchestrator.restarts
        assert (restart.step, restart.count, restart.replacements) == (3, 1, 1), gang.log()
        # And again, the pods that came for them included: their own copies are at their neighbours' by then.
        await gang.trained_to(5, orchestrator, pods)
        for rank in gang.left:
            os.kill(rank, signal.SIGCONT)
        await orchestrator.until(lambda: not any(map(is_alive, gang.left)))
        await gang.replace(ways[1], *lost)
        orchestrator.sealed = 7
        assert await gang.ended() == [ExitCode.OK] * pods, gang.log()
        assert [(one.step, one.count, one.replacements) for one in orchestrator.restarts[1:]] == [(5, 2, 2)]
        assert {index: gang.processes[index].pid for index in others} == others
        assert not orchestrator.notices, "nobody saves for a pod that another one takes the place of"
    assert orchestrator.committed == [7]
    assert {report.step for report in orchestrator.reports} == {1, 2, 3, 4, 5, 6, 7}
    assert {part.file for report in orchestrator.parts[7].values() for part in report.parts} >= {
        f"attempt_1/replaced_2/trainer/__{rank}_0.distcp" for rank in range(pods)
    }
    record(tmp_path / "recorded", 7, num_ranks=pods)
    through = await replayed(gang, tmp_path / "through", "--batches", str(tmp_path / "recorded"), ranks=pods)
    ended = await replayed(gang, tmp_path / "ended", "--checkpoint", str(gang.run.checkpoint(7)), ranks=1)
    assert ended == through


async def replayed(pods: Pods, folder: Path, *arguments: str, ranks: int) -> dict[str, object]:
    gang = Gang(folder, trainer_config(pods.run, pods.model), None, ranks)
    gang.start("echorl_trainer.replay", "--out", str(folder), "--device", "cpu", *arguments)
    try:
        assert await gang.ended() == [0] * ranks, gang.log()
    finally:
        await gang.stop()
    found: dict[str, object] = json.loads((folder / "result.json").read_bytes())
    return found


@campaign.campaign_mark("pods", PODS, 1, "two pods")
@pytest.mark.faults
async def test_the_cause_is_the_code_that_is_not_1(gang: Pods) -> None:
    async with gang.orchestrator(4) as orchestrator:
        await gang.start(orchestrator.url, pods=2, fault="trainer.mid_step@2")
        assert await gang.ended() == [128 + signal.SIGKILL, ExitCode.CRASH], gang.log()
    assert {rank for _, rank in orchestrator.pulls} == {0, 1}
    assert [gang.words(index).rank for index in range(2)] == [0, 1]
    assert gang.words(1).exit_name == "CRASH"
    assert "without a word" not in gang.words(1).message


@campaign.campaign_mark("pods", PODS, 1, "terminated")
async def test_sigterm_ends_all_ranks_at_once(gang: Pods) -> None:
    async with gang.orchestrator(4) as orchestrator:
        orchestrator.sealed = 1
        await gang.start(orchestrator.url, pods=1)
        await orchestrator.until(lambda: [one.step for one in orchestrator.reports] == [1])
        gang.processes[0].terminate()
        assert await gang.ended(45) == [TERMINATED], gang.log()
    assert (gang.words().message, gang.words().exit_name) == ("terminated", "SIGTERM")


@campaign.campaign_mark("pods", PODS, 1, "noticed")
async def test_a_notice_at_one_pod_has_the_gang_save_the_step_and_redo_nothing(gang: Pods) -> None:
    async with gang.orchestrator(9) as orchestrator:
        orchestrator.interval = 100
        orchestrator.sealed = 3
        await gang.start(orchestrator.url, pods=2, grace_s=200, memory=MemoryConfig(limit_bytes=2**30))
        await orchestrator.until(lambda: (4, 1) in orchestrator.pulls)
        gang.processes[1].terminate()
        await orchestrator.until(lambda: bool(orchestrator.notices))
        assert await gang.ended() == [ExitCode.NOTICE, ExitCode.NOTICE], gang.log()
    (notice,) = orchestrator.notices
    assert (notice.rank, notice.within_s, notice.save_s) == (1, 195.0, 0.0)
    assert orchestrator.committed == [3]
    assert {gang.words(index).message for index in range(2)} == {"its gang was given notice: step 3 is saved"}
    assert prepare(gang.run, replace(IDENTITY, attempt=2)).resume_step == 3


@campaign.campaign_mark("pods", PODS, 1, "noticed late")
async def test_a_step_that_takes_too_long_is_dropped_at_once(gang: Pods) -> None:
    async with gang.orchestrator(9) as orchestrator:
        orchestrator.sealed, orchestrator.drops = 3, True
        await gang.start(orchestrator.url, pods=1, grace_s=200)
        await orchestrator.until(lambda: orchestrator.committed == [2] and len(orchestrator.reports) == 3)
        gang.processes[0].terminate()
        assert await gang.ended(45) == [ExitCode.NOTICE], gang.log()
    assert {notice.rank for notice in orchestrator.notices} == {0, 1}
    assert max(notice.save_s for notice in orchestrator.notices) > 0
    assert gang.words().message == "given notice: as the test says"
    assert orchestrator.committed == [2]


@campaign.campaign_mark("pods", PODS, 1, "bad input")
async def test_bad_input_is_told_by_the_pod(gang: Pods, tmp_path: Path) -> None:
    gang.model = tmp_path / "nowhere"
    async with gang.orchestrator(4) as orchestrator:
        await gang.start(orchestrator.url, pods=1)
        assert await gang.ended() == [ExitCode.BAD_INPUT], gang.log()
    assert "nowhere" in gang.words().message
    assert gang.words().exit_name == "BAD_INPUT"
