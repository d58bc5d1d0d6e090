"""Copies of a run's folder by the program that a pod runs; here it runs on this machine."""

import json
import subprocess
import sys
from inspect import getsource
from pathlib import Path

import pytest

from echorl_cli.view import remote_records
from echorl_cli.view.mirror import Copy


def passed(copy: Copy, root: Path) -> bool:
    command = [sys.executable, "-c", getsource(remote_records), str(root)]
    done = subprocess.run(command, input=copy.asked(), capture_output=True, timeout=60, check=True)
    return copy.take(done.stdout)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_follows_what_is_appended_replaced_and_new(tmp_path: Path) -> None:
    root, copy = tmp_path / "run", Copy("one", tmp_path / "copy")
    records = root / "records" / "attempt_1"
    (records / "episodes").mkdir(parents=True)
    (root / "checkpoints").mkdir()
    (root / "checkpoints" / "large.bin").write_bytes(b"weights")
    (root / "run.json").write_text('{"name": "one"}')
    (records / "steps.jsonl").write_text("1\n")
    (records / "outside").symlink_to("/etc/passwd")
    assert passed(copy, root)
    shown = {"run.json": b'{"name": "one"}', "records/attempt_1/steps.jsonl": b"1\n"}
    assert contents(copy.folder) == shown
    assert not passed(copy, root)

    with (records / "steps.jsonl").open("a") as file:
        file.write("2\n")
    (records / "episodes" / "step_000001.parquet").write_bytes(b"\n\0" * 9)
    (root / "new").write_text('{"name": "another, shorter"}')
    (root / "new").rename(root / "run.json")
    assert passed(copy, root)
    shown = {"run.json": b'{"name": "another, shorter"}', "records/attempt_1/steps.jsonl": b"1\n2\n"}
    shown["records/attempt_1/episodes/step_000001.parquet"] = b"\n\0" * 9
    assert contents(copy.folder) == shown

    (records / "steps.jsonl").write_text("3\n")
    assert passed(copy, root)
    assert contents(copy.folder)["records/attempt_1/steps.jsonl"] == b"3\n"


def test_a_large_run_comes_in_parts(tmp_path: Path) -> None:
    root, copy = tmp_path / "run", Copy("one", tmp_path / "copy", 7)
    (root / "records").mkdir(parents=True)
    (root / "records" / "a").write_bytes(b"0123456789")
    (root / "records" / "b").write_bytes(b"abcdef")
    passes = 0
    while passed(copy, root):
        passes += 1
        assert passes < 9
    assert passes == 3
    assert contents(copy.folder) == {"records/a": b"0123456789", "records/b": b"abcdef"}


@pytest.mark.parametrize("path", ["../escape", "/etc/cron.d/x", "records/../../x", "records/.hidden", "a//b", ""])
def test_a_pod_names_no_path_beyond_the_folder(tmp_path: Path, path: str) -> None:
    copy = Copy("one", tmp_path / "copy")
    with pytest.raises(ValueError, match="accepted is a whole file of the run"):
        copy.take(json.dumps([path, 1, 0, 2]).encode() + b"\nok")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", [b"no answer", b"[1]\n", b'["records/a", 1, 0, 9]\nshort', b'["a", 1, -1, 1]\nx'])
def test_half_an_answer_is_none(tmp_path: Path, answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Copy("one", tmp_path / "copy").take(answer)
