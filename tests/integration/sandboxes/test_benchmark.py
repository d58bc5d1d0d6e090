"""The benchmarks' small runs."""

import shutil
from pathlib import Path

import pytest

from benchmarks.agents_under_faults.deaths import bias
from benchmarks.agents_under_faults.killing import killing
from benchmarks.sandboxes.daemon import daemon_measured
from benchmarks.sandboxes.measuring import measured
from echorl_testing.cluster.errors import Unavailable


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_nothing_is_left_of_sandboxes_in_sequence(tmp_path: Path) -> None:
    figures = await measured(tmp_path, count=5, cold=1, at_once=4, files=10)
    assert (figures.left_processes, figures.left_files) == (0, 0)
    assert {what: len(seconds) for what, seconds in figures.seconds.items()} == {
        "cold start, archive": 1,
        "warm start, archive": 5,
        "start, host": 5,
        "a command that does nothing": 5,
        "kill of a command": 5,
        "warm start, 4 at once": 4,
        "end": 11,
    }


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_the_daemon_is_measured_call_by_call() -> None:
    try:
        figures = await daemon_measured(2)
    except Unavailable as error:
        pytest.skip(str(error))
    assert {what.removeprefix("daemon: "): len(seconds) for what, seconds in figures.seconds.items()} == {
        "start": 1,
        "a command that does nothing": 2,
        "start of a command": 2,
        "kill of a command": 2,
        "write of 1 MiB": 2,
        "read of 1 MiB": 2,
    }


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_nothing_is_left_or_falsely_scored_of_agents_that_are_killed(tmp_path: Path) -> None:
    killed = await killing(tmp_path, 5, 3)
    assert killed.well, killed
    assert killed.kills.total() == 5


async def test_a_baseline_is_that_of_the_survivors(tmp_path: Path) -> None:
    found = await bias(tmp_path, 0.5, 4)
    assert found.episodes > 0
    assert 0.3 < found.lost < 0.7
    assert found.zeros[0] < found.trained[0] - 0.1  # half of about 0.5 is missing there
