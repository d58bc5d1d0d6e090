"""Where a run begins by its policy, and what becomes of another run's work in its directory."""

import json
from pathlib import Path

import pytest

from echorl_core.attempts import OnExisting, Policy, Refused, claim_run, read_run
from echorl_core.prepare import prepare
from echorl_core.rundir import RunDirectory
from echorl_testing.local.committed_runs import commit, identity, plant


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    claim_run(run, "name", "uid")
    return run


def test_another_runs_attempts_are_none_of_ours(run: RunDirectory) -> None:
    for attempt in (1, 2, 3):
        prepare(run, identity(attempt))
        (run.attempt(attempt) / "stop.json").write_text("{}")
    commit(run, 4)
    prepared = prepare(run, identity(1, uid="new"), on_existing=OnExisting.ARCHIVE)
    assert (prepared.resume_step, prepared.archived) == (0, "archive/uid")
    assert sorted(path.name for path in run.attempt(1).iterdir()) == ["committed.json", "prepared.json"]


def test_another_runs_directory_is_refused_untouched(run: RunDirectory) -> None:
    commit(run, 2)
    gone = plant(run)
    with pytest.raises(Refused, match=r"belongs to run uid \(name\), not to other.*onExisting to Archive"):
        prepare(run, identity(1, "other"))
    assert all((run.root / path).exists() for path in gone)
    assert not run.attempt(1).exists()


@pytest.mark.parametrize("name", ["checkpoints", "broadcasts", "checkpoints/step_000002"])
def test_a_folder_that_leads_out_of_the_run_is_refused_and_what_it_leads_to_stays(run: RunDirectory, name: str) -> None:
    # As in a copy that was made without following links: it would tidy up the original's checkpoints.
    other = RunDirectory(run.root.with_name("original"))
    commit(other, 2)
    other.broadcast(1, 2).mkdir(parents=True)
    (run.root / name).parent.mkdir(exist_ok=True)
    (run.root / name).symlink_to(other.root / name)
    with pytest.raises(Refused, match=rf"{name}: found a link to .*original/{name}.*accepted: a folder of the run's"):
        prepare(run, identity(1))
    assert (other.checkpoint(2) / "manifest.json").exists()
    assert other.broadcast(1, 2).exists()


@pytest.mark.parametrize("uid", ["../../elsewhere", "/etc", "..", "", "x" * 254])
def test_a_uid_that_leads_out_of_the_archive_is_refused(run: RunDirectory, uid: str) -> None:
    run.identity_file.write_text(json.dumps({"uid": uid, "name": "name", "created": ""}))
    with pytest.raises(Refused, match=r"run\.json: found uid"):
        prepare(run, identity(1, "other"), on_existing=OnExisting.ARCHIVE)
    run.identity_file.unlink()
    commit(run, 2, uid=uid)
    assert prepare(run, identity(1, "other"), on_existing=OnExisting.ARCHIVE).archived == "archive/unknown"


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
