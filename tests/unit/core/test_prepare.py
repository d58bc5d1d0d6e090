import json
import shutil
from pathlib import Path

import pytest

from echorl_core.attempts import Refused, claim_run, read_prepared
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory, write_folder
from echorl_testing.local.committed_runs import commit, identity, plant


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    claim_run(run, "name", "uid")
    return run


def test_a_fresh_run_loses_every_leftover_and_starts_at_zero(run: RunDirectory) -> None:
    gone = plant(run)
    prepared = prepare(run, identity(3))
    assert prepared.resume_step == 0
    assert prepared.checkpoint is None
    assert set(prepared.removed) == gone
    assert [path for path in gone if (run.root / path).exists()] == []
    assert (run.root / "records/attempt_1/steps.jsonl").exists()
    assert (run.recorded_batch(1, 7) / "rank_0.bin").exists()
    assert prepared.lines()[-1] == "starting at step 0"


def test_a_resumed_run_starts_at_its_newest_checkpoint_and_loses_later_work(run: RunDirectory) -> None:
    commit(run, 2)
    commit(run, 4)
    gone = plant(run)
    prepared = prepare(run, identity(2))
    assert (prepared.resume_step, prepared.checkpoint) == (4, "checkpoints/step_000004")
    assert set(prepared.removed) == gone
    assert prepared.kept == ["checkpoints/step_000002", "checkpoints/step_000004"]
    assert [one.step for one in prepared.committed] == [2, 4]
    assert json.loads((run.attempt(2) / "committed.json").read_text())[0]["step"] == 2
    assert read_prepared(run, 2) == prepared


def test_what_it_removed_and_skipped_is_said(run: RunDirectory) -> None:
    commit(run, 2)
    commit(run, 4).write_bytes(b"")
    plant(run)
    lines = prepare(run, identity(2)).lines()
    assert any("skipped checkpoint 4" in line and "rank_0.bin: 0 bytes" in line for line in lines)
    assert "removed batches/step_000007" in lines
    assert lines[-1] == "resuming from step 2 (checkpoints/step_000002)"


def test_a_second_prepare_of_an_attempt_touches_nothing(run: RunDirectory) -> None:
    first = prepare(run, identity(1))
    write_folder(run.batch(1), {"seal.json": b"{}"})
    commit(run, 1)
    assert prepare(run, identity(1)) == first
    assert run.batch(1).exists()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:-1]), "bytes", id="truncated"),
        pytest.param(lambda file: file.write_bytes(b"Weights 4 of 1"), "content differs", id="bit flipped"),
        pytest.param(lambda file: file.unlink(), "missing", id="deleted"),
        pytest.param(
            lambda file: (file.parents[2] / "manifest.json").write_text('{"step"'), "unreadable", id="manifest cut"
        ),
    ],
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(run: RunDirectory, damage, reason: str) -> None:
    commit(run, 2)
    damage(commit(run, 4))
    prepared = prepare(run, identity(2))
    assert prepared.resume_step == 2
    assert [one.step for one in prepared.skipped] == [4]
    assert reason in prepared.skipped[0].reason
    assert run.checkpoint(4).exists()
    assert [one.step for one in prepared.committed] == [2]


def test_a_damaged_checkpoint_stays_skipped_when_it_heals(run: RunDirectory) -> None:
    commit(run, 2)
    file = commit(run, 4)
    content = file.read_bytes()
    file.write_bytes(b"")
    prepare(run, identity(2))
    file.write_bytes(content)
    prepared = prepare(run, identity(3))
    assert prepared.resume_step == 2
    assert "not among those that attempt 2 began with" in prepared.skipped[0].reason


def test_parts_without_a_manifest_go_and_parts_beside_one_stay(run: RunDirectory) -> None:
    commit(run, 2, attempt=2)
    beside = run.checkpoint(2) / "attempt_1" / "rank_0.bin"
    beside.parent.mkdir()
    beside.write_bytes(b"of an attempt that was not committed here")
    (run.checkpoint(4) / "attempt_2").mkdir(parents=True)
    prepared = prepare(run, identity(3))
    assert prepared.removed == ["checkpoints/step_000004"]
    assert beside.exists()


def test_what_the_attempt_before_committed_counts(run: RunDirectory) -> None:
    prepare(run, identity(1))
    commit(run, 2, attempt=1)
    prepare(run, identity(2))
    commit(run, 4, attempt=2)
    prepared = prepare(run, identity(3))
    assert [(one.step, one.attempt) for one in prepared.committed] == [(2, 1), (4, 2)]


def test_a_manifest_that_an_older_attempt_writes_late_is_ignored(run: RunDirectory) -> None:
    prepare(run, identity(1))
    commit(run, 2, attempt=1)
    prepare(run, identity(2))
    commit(run, 4, attempt=1)
    prepared = prepare(run, identity(3))
    assert prepared.resume_step == 2
    assert prepared.skipped[0].step == 4
    assert "committed by attempt 1" in prepared.skipped[0].reason


def test_a_manifest_of_an_attempt_that_has_not_begun_is_ignored(run: RunDirectory) -> None:
    commit(run, 2, attempt=7)
    prepared = prepare(run, identity(3))
    assert prepared.resume_step == 0
    assert "attempt 7, which had not begun" in prepared.skipped[0].reason


def test_an_attempt_that_is_over_cannot_prepare(run: RunDirectory) -> None:
    prepare(run, identity(4))
    write_folder(run.batch(1), {"seal.json": b"{}"})
    with pytest.raises(Refused, match="attempt 4 has begun, attempt 3 is over"):
        prepare(run, identity(3))
    assert run.batch(1).exists()


def test_prepare_goes_on_after_it_was_interrupted(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(run, 2)
    plant(run)
    real = shutil.rmtree

    def full(path: Path) -> None:
        if path.name == "step_000006":
            raise OSError("input/output error")
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", full)
        with pytest.raises(OSError, match="input/output"):
            prepare(run, identity(2))
    assert read_prepared(run, 2) is None
    assert prepare(run, identity(2)).resume_step == 2
    assert list(run.batches.iterdir()) == []


def test_what_a_living_supervisor_is_writing_stays(run: RunDirectory) -> None:
    run.root.mkdir(parents=True, exist_ok=True)
    being_written = [run.root / f".tmp-{name}.12" for name in (".processes.json", "state.json")]
    for path in being_written:
        path.write_text("{")
    assert prepare(run, identity(3)).removed == []
    assert all(path.exists() for path in being_written)
