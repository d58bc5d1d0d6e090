"""Which episodes are recorded as what; the Parquet files are read back by pyarrow."""

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from echorl_core.rundir import RunDirectory
from echorl_orchestrator.episode_outcome import FailedEpisode, StopReason
from echorl_orchestrator.failures import ErrorKind, class_of
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.records.episode_records import (
    MAX_FAILED,
    MAX_FILTERED,
    MAX_WAITING,
    EpisodeFiles,
    EpisodeRecords,
)
from echorl_orchestrator.records.recorder import EPISODES, EPISODES_A_STEP, Recorder
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import Ticket
from echorl_testing.orchestrator.scripted_player import eventually, outcome


def ready(episode: str, *, verdict: Verdict | None = None, task_key: int | str = 1) -> ReadyEpisode:
    made = outcome(episode, reward=0.5, version=2)
    made.version_high, made.num_turns, made.sampled_tokens, made.seconds = 3, 4, 50, 1.5
    made.metrics, made.info, made.task_key = {"pages": 2.0, "bytes": 7.0}, {"seed": [1]}, task_key
    made.messages = [{"role": "user", "content": f"{episode} ü"}]
    return ReadyEpisode(made, "g1", Ticket("terminal", 0, 0, 0), 0.25, verdict or Verdict(), 2, partial=False)


SAID = [{"slot": "guess", "member": "left", "text": "vier ü"}, {"slot": "guess", "member": "right", "text": "5"}]


def unit(member: str, *, advantage: float = 0.25) -> ReadyEpisode:
    """One member's part of an episode of three."""
    made = ready(f"whole/{member}")
    made.outcome.member, made.outcome.transcript = member, SAID
    made.outcome.rewards = {"right": -1.0, "left": 1.0, "judge": 0.0}
    made.outcome.reward = made.outcome.rewards[member]
    return replace(made, advantage=advantage)


def opened(folder: Path) -> tuple[RunDirectory, Recorder]:
    run = RunDirectory(folder)
    recorder = Recorder(run.records(3))
    recorder.open()
    return run, recorder


async def test_a_step_s_file_holds_the_batch_and_what_filters_kept_out(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    for number in range(6):
        records.filtered(5, ready(f"f{number}", verdict=Verdict(("zeroAdvantage",), rl=False), task_key="t"))
    await records.sealed(5, [ready(f"e{number}") for number in range(7)])
    await records.sealed(6, [ready("late")])
    await records.close()
    await recorder.close()
    rows = pq.read_table(run.episodes(3, 5)).to_pylist(maps_as_pydicts="strict")
    assert [row["episode"] for row in rows] == [*(f"e{n}" for n in range(7)), *(f"f{n}" for n in range(6))]
    assert json.loads(rows[0].pop("messages")) == [{"role": "user", "content": "e0 ü"}]
    assert json.loads(rows[0].pop("state")) == {"seed": [1]}
    assert rows[0] == {
        "kind": "train",
        "step": 5,
        "attempt": 3,
        "episode": "e0",
        "member": None,
        "environment": "terminal",
        "task_key": "1",
        "group": "g1",
        "in_batch": True,
        "reward": 0.5,
        "rewards": None,
        "advantage": 0.25,
        "staleness": 2,
        "version_low": 2,
        "version_high": 3,
        "filters": [],
        "trains_rl": True,
        "trains_ce": True,
        "stop": "terminated",
        "truncated": False,
        "turns": 4,
        "sampled_tokens": 50,
        "environment_tokens": 2,
        "kept_tokens": 2,
        "branches": 1,
        "branches_dropped": 0,
        "branches_unused": 0,
        "unattributed": False,
        "seconds": 1.5,
        "metrics": {"bytes": 7.0, "pages": 2.0},
        "transcript": None,
        "conversations": None,
        "error_class": None,
        "error_kind": None,
        "error": None,
        "phase": None,
    }
    last = rows[-1]
    assert (last["in_batch"], last["filters"], last["trains_rl"], last["trains_ce"], last["task_key"]) == (
        False,
        ["zeroAdvantage"],
        False,
        True,
        "t",
    )
    assert pq.read_table(run.episodes(3, 6), columns=["episode"]).to_pylist() == [{"episode": "late"}]
    assert sorted(path.name for path in run.episodes(3, 5).parent.iterdir()) == [
        "step_000005.parquet",
        "step_000006.parquet",
    ]
    lines = recorder.rows(EPISODES)
    assert sum(row["in_batch"] for row in lines) == EPISODES_A_STEP + 1
    assert sum(not row["in_batch"] for row in lines) == EPISODES_A_STEP
    assert records.failed_files == 0


async def test_a_member_s_row_has_the_rewards_of_all_and_what_was_said_as_in_json_lines(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    records.filtered(5, unit("left", advantage=math.nan))
    await records.sealed(5, [unit("right")])
    await records.close()
    await recorder.close()
    table = pq.read_table(run.episodes(3, 5))
    rows = table.to_pylist(maps_as_pydicts="strict")
    assert [row["member"] for row in rows] == ["right", "left"]
    assert [row["advantage"] for row in rows] == [0.25, None]
    lines = {row["member"]: row for row in recorder.rows(EPISODES)}
    for row in rows:
        line = lines[row["member"]]
        assert row["rewards"] == line["rewards"] == {"judge": 0.0, "left": 1.0, "right": -1.0}
        assert json.loads(row["transcript"]) == line["transcript"] == SAID
        assert json.loads(row["messages"]) == line["messages"]
        assert (row["reward"], row["episode"]) == (line["reward"], line["episode"])


def failed(episode: str, kind: ErrorKind = ErrorKind.HARNESS, error: str = "setup: ended with 9") -> FailedEpisode:
    lost = outcome(episode, error=kind)
    lost.reward, lost.stop, lost.phase, lost.seconds = math.nan, StopReason.ERROR, "run", 2.5
    lost.messages = [{"role": "user", "content": episode}]
    lost.turns = [{"start_s": 0.0, "end_s": 1.0}]
    return FailedEpisode(lost, "g1", kind, error)


async def test_an_episode_that_failed_is_told_singly_and_is_in_no_batch(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    records.failed(5, failed("lost", error="x" * 10_000))
    records.failed(6, failed("early", ErrorKind.PROVIDER))  # while batch 5 was being written
    await records.sealed(5, [ready("e0")])
    await records.sealed(6, [ready("e1")])
    await records.close()
    await recorder.close()
    whole, lost = pq.read_table(run.episodes(3, 5)).to_pylist(maps_as_pydicts="strict")
    (line,) = (row for row in recorder.rows(EPISODES) if row["episode"] == "lost")
    assert whole["error_class"] is None
    for row in (lost, line):
        assert (row["episode"], row["step"], row["group"], row["stop"]) == ("lost", 5, "g1", "error")
        assert (row["in_batch"], row["reward"], row["advantage"]) == (False, None, None)
        assert (row["error_class"], row["error_kind"], row["phase"]) == ("harness", "harness", "run")
        assert (row["error"], row["seconds"]) == ("x" * 4000, 2.5)
    assert json.loads(lost["messages"]) == line["messages"] == [{"role": "user", "content": "lost"}]
    assert (lost["trains_rl"], lost["trains_ce"], lost["staleness"]) == (False, False, None)
    assert line["turns"] == [{"start_s": 0.0, "end_s": 1.0}]
    rows = pq.read_table(run.episodes(3, 6), columns=["episode", "error_class", "step"]).to_pylist()
    assert rows[1] == {"episode": "early", "error_class": "infrastructure", "step": 6}


async def test_thousands_of_failures_leave_a_bounded_number_of_records(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    for number in range(2 * MAX_FAILED):
        records.failed(5, failed(f"h{number}", ErrorKind.HARNESS))
        records.failed(5, failed(f"i{number}", ErrorKind.SANDBOX))
    # No batch is ever sealed: what failed is written when the run ends.
    await records.close()
    await recorder.close()
    assert pq.read_metadata(run.episodes(3, 5)).num_rows == MAX_FAILED
    classes = Counter(row["error_class"] for row in recorder.rows(EPISODES))
    assert classes == {"harness": EPISODES_A_STEP, "infrastructure": EPISODES_A_STEP}


async def test_what_failed_in_an_eval_is_told_with_it(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    lost = [failed(f"h{number}") for number in range(MAX_FAILED + 1)]
    await records.evaluated(4, "held-out", [unit("left").outcome], lost)
    await records.evaluated(4, "all-failed", [], lost[:1])
    rows = pq.read_table(run.eval_episodes(3, 4, "held-out")).to_pylist()
    assert len(rows) == 1 + MAX_FAILED
    assert (rows[1]["kind"], rows[1]["error_class"], rows[1]["in_batch"], rows[1]["group"]) == (
        "eval",
        "harness",
        None,
        None,
    )
    assert pq.read_metadata(run.eval_episodes(3, 4, "all-failed")).num_rows == 1
    lines = recorder.rows(EPISODES)
    assert [row["episode"] for row in lines] == ["h0", "h1", "h2", "h3", "h0"]
    assert {(row["kind"], row["step"], row["error_kind"], row["reward"]) for row in lines} == {
        ("eval", 4, "harness", None)
    }


@pytest.mark.parametrize("kind", ErrorKind)
def test_every_kind_of_failure_has_a_class(kind: ErrorKind) -> None:
    expected = {
        "infrastructure": {"provider", "sandbox", "invalidResponse", "infrastructure"},
        "harness": {"harness", "env", "overlong"},
        "agent": {"agent", "timeout", "protocol", "cancelled"},
    }
    assert kind in expected[class_of(kind)]


async def test_what_was_said_is_let_go_where_too_many_episodes_are_filtered(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    one = unit("left")
    for _ in range(MAX_FILTERED + 1):
        records.filtered(5, one)
    await records.sealed(5, [])
    await records.close()
    *held, late = pq.read_table(run.episodes(3, 5)).to_pylist(maps_as_pydicts="strict")
    assert json.loads(held[-1]["transcript"]) == SAID
    assert (late["transcript"], late["messages"], late["rewards"]["left"]) == (None, None, 1.0)


async def test_an_agent_s_branches_are_recorded_with_what_was_said_in_each(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    talks = [{"branch": n, "unused": "sideCall" if n else None, "messages": [{"role": "user"}]} for n in range(2)]
    one = ready("e0")
    one.outcome.conversations, one.outcome.unused_branches = talks, 1
    await records.sealed(5, [one])
    await records.close()
    (row,) = pq.read_table(run.episodes(3, 5)).to_pylist(maps_as_pydicts="strict")
    assert (json.loads(row["conversations"]), row["branches_unused"]) == (talks, 1)
    (line,) = recorder.rows(EPISODES)
    assert line["conversations"] == talks
    assert one.without_texts().outcome.conversations == []


async def test_an_eval_s_file_holds_all_its_episodes(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    played = [ready(f"e{number}").outcome for number in range(6)]
    await records.evaluated(0, "held-out", played)
    await records.evaluated(4, "held-out", [unit("left").outcome])
    await records.evaluated(4, "all-failed", [])
    (folder,) = {run.eval_episodes(3, 0, "held-out").parent}
    assert sorted(path.name for path in folder.iterdir()) == [
        "step_000000.held-out.parquet",
        "step_000004.held-out.parquet",
    ]
    rows = pq.read_table(run.eval_episodes(3, 0, "held-out")).to_pylist(maps_as_pydicts="strict")
    assert [row["episode"] for row in rows] == [f"e{number}" for number in range(6)]
    last = rows[-1]
    assert (last["kind"], last["step"], last["attempt"], last["reward"]) == ("eval", 0, 3, 0.5)
    assert (last["version_low"], last["version_high"]) == (2, 3)
    assert json.loads(last["messages"]) == [{"role": "user", "content": "e5 ü"}]
    training = ("group", "in_batch", "advantage", "staleness", "filters", "trains_rl", "trains_ce")
    assert [last[name] for name in training] == [None] * len(training)
    assert set(pq.read_schema(run.eval_episodes(3, 0, "held-out")).names) == set(last)
    whole = pq.read_table(folder).to_pylist(maps_as_pydicts="strict")
    assert len(whole) == 7
    assert whole[-1]["rewards"] == {"judge": 0.0, "left": 1.0, "right": -1.0}


async def test_an_eval_whose_file_cannot_be_written_is_counted(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    run.eval_episodes(3, 0, "held-out").parent.write_text("a file where the folder should be")
    with capture_logs() as logs:
        await records.evaluated(0, "held-out", [ready("e").outcome])
    assert records.failed_files == 1
    assert "held-out" in logs[0]["reason"]


async def test_files_are_written_while_nothing_waits_for_them(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    task = asyncio.create_task(records.run())
    await records.sealed(1, [ready("e")])
    await eventually(lambda: run.episodes(3, 1).exists(), "the file is written")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_cannot_be_written_is_counted_and_told_once(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    run.episodes(3, 1).parent.write_text("a file where the folder should be")
    with capture_logs() as logs:
        for step in (1, 2):
            await records.sealed(step, [ready("e")])
        await records.close()
        run.episodes(3, 1).parent.unlink()
        await records.sealed(3, [ready("e")])
        await records.close()
    assert records.failed_files == 2
    assert [entry["step"] for entry in logs] == [1]
    assert run.episodes(3, 3).exists()


async def test_steps_that_the_disk_is_too_slow_for_are_left_out(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, EpisodeFiles(run, 3), 3)
    for step in range(1, MAX_WAITING + 3):
        await records.sealed(step, [ready("e")])
    await records.close()
    assert records.failed_files == 2
    assert run.episodes(3, MAX_WAITING).exists()
    assert not run.episodes(3, MAX_WAITING + 1).exists()


async def test_without_the_switch_there_are_lines_alone(tmp_path: Path) -> None:
    run, recorder = opened(tmp_path)
    records = EpisodeRecords(recorder, None, 3)
    await records.sealed(1, [ready("e")])
    await records.evaluated(1, "held-out", [ready("e").outcome])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(records.run(), 0.01)
    await records.close()
    assert [row["episode"] for row in recorder.rows(EPISODES)] == ["e"]
    assert not run.episodes(3, 1).parent.exists()
    assert not run.eval_episodes(3, 1, "held-out").parent.exists()
