import os
from pathlib import Path

import pytest

from echorl_core import rundir
from echorl_core.rundir import RunDirectory


def test_a_failed_write_leaves_the_old_file_and_no_droppings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "state.json"
    rundir.write_file(target, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        rundir.write_file(target, b"new")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_a_link_under_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / f"{rundir.TEMPORARY_PREFIX}state.json.{os.getpid()}").symlink_to(tmp_path / "kept")
    rundir.write_file(tmp_path / "state.json", b"new")
    assert (tmp_path / "kept").read_bytes() == b"kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "state.json"]


def test_a_folder_is_replaced_whole(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    rundir.write_folder(run.batch(3), {"rank_0.bin": b"a", "rank_1.bin": b"b"})
    rundir.write_folder(run.batch(3), {"rank_0.bin": b"c"})
    assert [(step, path.name) for step, path in run.sealed_steps()] == [(3, "step_000003")]
    assert {path.name: path.read_bytes() for path in run.batch(3).iterdir()} == {"rank_0.bin": b"c"}


def test_a_run_directory_that_was_deleted_does_not_come_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        rundir.write_folder(run.recorded_batch(1, 3), {"rank_0.bin": b"a"}, within=run.root)
    with pytest.raises(FileNotFoundError):
        rundir.write_file(run.episodes(1, 3), b"", within=run.root)
    assert list(tmp_path.iterdir()) == []
    run.root.mkdir()
    rundir.write_folder(run.recorded_batch(1, 3), {"rank_0.bin": b"a"}, within=run.root)
    rundir.write_file(run.episodes(1, 3), b"", within=run.root)
    assert run.episodes(1, 3).read_bytes() == b""
    assert [path.name for path in run.recorded_batch(1, 3).iterdir()] == ["rank_0.bin"]


def test_a_folder_that_could_not_be_finished_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        rundir.write_folder(run.batch(1), {"rank_0.bin": b"a"})
    assert run.sealed_steps() == []
    assert list(run.batches.iterdir()) == []


def test_temporary_and_foreign_names_are_no_steps(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for name in (".tmp-step_000004.12", "step_x", "step_000002"):
        (run.batches / name).mkdir(parents=True)
    assert [step for step, _ in run.sealed_steps()] == [2]
    (run.root / "attempts" / "3").mkdir(parents=True)
    assert run.last_attempt() == 3
