"""The benchmark of the page of runs, on a small run."""

import pytest

from benchmarks.view import __main__ as bench
from benchmarks.view.run_folder import RunWriter, Shape
from echorl_cli.view import queries
from echorl_cli.view.queries import Wanted
from echorl_testing import browser
from echorl_testing.view_folder import watch_of


def test_the_same_seed_writes_the_same_run(tmp_path):
    for name in ("one", "two"):
        RunWriter(tmp_path / name, "same", 3, Shape(2, 20)).write()
    (_, one), (_, two) = watch_of(tmp_path / "one"), watch_of(tmp_path / "two")
    assert queries.episodes(one, Wanted()) == queries.episodes(two, Wanted())
    assert queries.totals(one, Wanted())["episodes"] == 40


def test_it_measures_and_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(browser, "_PROGRAMS", ("no-such-browser",))
    assert bench.main(["--out", str(tmp_path), "--steps", "3", "--episodes", "10", "--repeats", "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("30 episodes, seed 1")
    assert [line.split()[0] for line in told[1:]] == ["serves", "shows", "all", "asks"]
    assert "no browser here" in told[2]
    assert bench.folder(tmp_path, 3, 10).stat().st_mtime_ns == (tmp_path / "run-3-10").stat().st_mtime_ns


def test_a_run_that_lacks_episodes_is_not_measured(tmp_path):
    root = bench.folder(tmp_path, 1, 4)
    with pytest.raises(AssertionError):
        bench.all_s(root, 5)
