"""What ``echorl view`` refuses, with code 2 and one line; and the names of runs."""

import socket

import pytest
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_cli.view.folders import shown_runs
from echorl_testing.view_folder import written


def refused(*arguments):
    result = CliRunner().invoke(app_for(["view"]), ["view", *map(str, arguments)])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def test_no_such_folder(tmp_path):
    assert "nothing: found no records of a run" in refused(tmp_path / "nothing")


def test_an_empty_folder_and_a_file(tmp_path):
    assert f"{tmp_path}: found no records of a run; accepted: the directory of a run" in refused(tmp_path)
    (tmp_path / "file").touch()
    assert "found no records of a run" in refused(tmp_path / "file")
    assert "an empty name" in refused("")
    (tmp_path / "loop").symlink_to("loop")
    assert "loop: found no records of a run" in refused(tmp_path / "loop")


def test_no_run_below_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"found no run below {tmp_path / 'runs'}; accepted: echorl view RUN_DIR..." in refused()


def test_one_run_twice(root, tmp_path):
    (tmp_path / "again").symlink_to(root)
    assert "again twice; accepted: each run once" in refused(root, tmp_path / "again")


def test_a_run_that_cannot_say_who_it_is(root):
    (root / "run.json").write_text("{")
    assert "run.json: found no JSON" in refused(root)


def test_a_port_in_use(root):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port}: Address already in use" in refused(root, "--port", port)


@pytest.mark.parametrize("arguments", [["--port", "70000"], ["--host", "no.such.host.invalid"], ["--host", "a\0b"]])
def test_addresses_that_are_none(root, arguments):
    refused(root, *arguments)


def test_two_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    (tmp_path / "a").mkdir()
    one, two = written(tmp_path / "one"), written(tmp_path / "two")
    three = written(tmp_path / "three")
    (three / "run.json").write_text('{"uid": "u3", "name": "other"}')
    labels = [run.label for run in shown_runs([one, two, three])]
    assert labels == [f"debate ({one})", f"debate ({two})", "other"]


def test_all_below_runs_where_none_is_named(tmp_path, monkeypatch):
    (tmp_path / "runs" / "no-run").mkdir(parents=True)
    written(tmp_path / "runs" / "b")
    monkeypatch.chdir(tmp_path)
    assert [run.label for run in shown_runs([])] == ["debate"]


def test_a_name_is_not_read_through_a_link(root, tmp_path):
    (tmp_path / "elsewhere.json").write_text('{"name": "secret"}')
    (root / "run.json").unlink()
    (root / "run.json").symlink_to(tmp_path / "elsewhere.json")
    assert shown_runs([root])[0].label == "debate"
