import json
import shutil
from pathlib import Path

import pytest

from echorl_core import checkpoints
from echorl_core.attempts import OnExisting, Policy, Refused, claim_run, read_prepared, read_run
from echorl_core.checkpoints import CheckpointManifest
from echorl_core.identity import RunIdentity
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory, write_folder


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    claim_run(run, "name", "uid")
    return run


def identity(attempt: int, uid: str = "uid") -> RunIdentity:
    return RunIdentity("name", uid, attempt)


def commit(run: RunDirectory, step: int, attempt: int = 1, uid: str = "uid") -> Path:
    folder = run.checkpoint(step)
    file = folder / f"attempt_{attempt}" / "trainer" / "rank_0.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights %d of %d" % (step, attempt))
    manifest = CheckpointManifest(
        run_uid=uid,
        attempt=attempt,
        step=step,
        policy_version=step,
        num_ranks=1,
        committed_at="2026-01-01T00:00:00Z",
        history=checkpoints.NO_HISTORY,
        parts=[checkpoints.part_of(folder, file, "trainer", 0)],
    )
    checkpoints.write_manifest(folder, manifest)
    return file


def test_another_runs_attempts_are_none_of_ours(run: RunDirectory) -> None:
    for attempt in (1, 2, 3):
        prepare(run, identity(attempt))
        (run.attempt(attempt) / "stop.json").write_text("{}")
    commit(run, 4)
    prepared = prepare(run, identity(1, uid="new"), on_existing=OnExisting.ARCHIVE)
    assert (prepared.resume_step, prepared.archived) == (0, "archive/uid")
    assert sorted(path.name for path in run.attempt(1).iterdir()) == ["committed.json", "prepared.json"]


def plant(run: RunDirectory) -> set[str]:
    """Everything that an attempt leaves behind; returns the paths that must go."""
    for step in (5, 6, 7):
        write_folder(run.batch(step), {"seal.json": b"{}", "rank_0.bin": b"stale"})
    write_folder(run.broadcast(1, 6), {"manifest.json": b"{}"})
    write_folder(run.broadcast(2, 4), {"manifest.json": b"{}"})
    (run.checkpoints / "step_000007" / "attempt_1").mkdir(parents=True)
    (run.checkpoints / "step_000007" / "attempt_1" / "rank_0.bin").write_bytes(b"half")
    half = run.root / "records" / "attempt_1"
    half.mkdir(parents=True)
    (half / ".tmp-steps.jsonl.1").write_text("x")
    (half / "steps.jsonl").write_text("{}")
    (run.root / ".tmp-report.html.77").write_text("x")
    (run.batches / ".tmp-step_000008.12").mkdir()
    (run.root / "stop").touch()
    (run.root / "spool" / "v_000003").mkdir(parents=True)
    write_folder(run.recorded_batch(1, 7), {"rank_0.bin": b"kept"})
    return {
        "batches/.tmp-step_000008.12",
        "batches/step_000005",
        "batches/step_000006",
        "batches/step_000007",
        "broadcasts/attempt_1",
        "broadcasts/attempt_2",
        "checkpoints/step_000007",
        "records/attempt_1/.tmp-steps.jsonl.1",
        ".tmp-report.html.77",
        "stop",
        "spool",
    }


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


def test_another_runs_directory_is_refused_untouched(run: RunDirectory) -> None:
    commit(run, 2)
    gone = plant(run)
    with pytest.raises(Refused, match=r"belongs to run uid \(name\), not to other.*onExisting to Archive"):
        prepare(run, identity(1, "other"))
    assert all((run.root / path).exists() for path in gone)
    assert not run.attempt(1).exists()


def test_another_runs_checkpoints_without_run_json_are_refused(run: RunDirectory) -> None:
    commit(run, 2)
    run.identity_file.unlink()
    with pytest.raises(Refused, match="belongs to run uid"):
        prepare(run, identity(1, "other"))


def test_another_runs_directory_is_archived_when_asked(run: RunDirectory) -> None:
    prepare(run, identity(1))
    commit(run, 2)
    plant(run)
    (run.root / ".lock").touch()
    (run.attempt(5) / "configs").mkdir(parents=True)
    prepared = prepare(run, identity(5, "other"), on_existing=OnExisting.ARCHIVE)
    assert (prepared.resume_step, prepared.archived) == (0, "archive/uid")
    old = RunDirectory(run.root / "archive" / "uid")
    assert (old.checkpoint(2) / "manifest.json").exists()
    assert old.attempt(1).exists()
    record = read_run(run)
    assert record is not None
    assert record.uid == "other"
    assert sorted(path.name for path in run.root.iterdir()) == [".lock", "archive", "attempts", "run.json"]
    assert [path.name for path in (run.root / "attempts").iterdir()] == ["5"]


def test_never_refuses_or_archives_committed_checkpoints(run: RunDirectory) -> None:
    commit(run, 2)
    with pytest.raises(Refused, match=r"committed checkpoints \(steps 2\), and resume.policy is Never"):
        prepare(run, identity(2), policy=Policy.NEVER)
    for attempt, target in ((2, "archive/uid"), (3, "archive/uid.2")):
        prepared = prepare(run, identity(attempt), policy=Policy.NEVER, on_existing=OnExisting.ARCHIVE)
        assert (prepared.resume_step, prepared.archived) == (0, target)
        assert (run.root / target / "checkpoints" / "step_000002" / "manifest.json").exists()
        commit(run, 2, attempt=attempt)


def test_never_without_checkpoints_starts(run: RunDirectory) -> None:
    assert prepare(run, identity(1), policy=Policy.NEVER).resume_step == 0


def test_from_step_goes_back_once_and_the_way_on_counts(run: RunDirectory) -> None:
    for step in (2, 4, 6):
        commit(run, step)
    back = prepare(run, identity(2), policy=Policy.FROM_STEP, step=4)
    assert back.resume_step == 4
    assert [one.step for one in back.committed] == [2, 4]
    again = prepare(run, identity(3), policy=Policy.FROM_STEP, step=4)
    assert again.resume_step == 4
    assert [one.step for one in again.skipped] == [6]
    commit(run, 5, attempt=3)
    assert prepare(run, identity(4), policy=Policy.FROM_STEP, step=4).resume_step == 5
    assert prepare(run, identity(5)).resume_step == 5


def test_from_step_zero_starts_anew_and_keeps_the_checkpoints(run: RunDirectory) -> None:
    commit(run, 2)
    prepared = prepare(run, identity(2), policy=Policy.FROM_STEP, step=0)
    assert (prepared.resume_step, prepared.kept) == (0, ["checkpoints/step_000002"])


def test_from_step_needs_that_checkpoint_whole(run: RunDirectory) -> None:
    commit(run, 2)
    with pytest.raises(Refused, match=r"no committed checkpoint of step 3 .* there are: 2"):
        prepare(run, identity(2), policy=Policy.FROM_STEP, step=3)
    commit(run, 4).unlink()
    with pytest.raises(Refused, match="checkpoint 4 is damaged"):
        prepare(run, identity(2), policy=Policy.FROM_STEP, step=4)
    with pytest.raises(Refused, match="a step belongs to FromStep alone"):
        prepare(run, identity(2), step=4)


def test_a_checkpoint_of_another_run_in_our_directory_is_skipped(run: RunDirectory) -> None:
    commit(run, 2)
    commit(run, 4, uid="other")
    prepared = prepare(run, identity(2))
    assert prepared.resume_step == 2
    assert prepared.skipped[0].reason == "of another run (other)"


def test_archived_runs_are_never_cleaned(run: RunDirectory) -> None:
    kept = run.root / "archive" / "older" / ".tmp-file.1"
    kept.parent.mkdir(parents=True)
    kept.touch()
    prepare(run, identity(1))
    assert kept.exists()


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
    being_written = run.root / ".tmp-.processes.json.12"
    being_written.write_text("{")
    assert prepare(run, identity(3)).removed == []
    assert being_written.exists()
