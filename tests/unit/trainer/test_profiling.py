"""Chosen steps are traced, others are not, and a trace that cannot be written stops nothing."""

import gzip
import json

import pytest
import torch

from echorl_core.rundir import RunDirectory
from echorl_trainer.profiling import Profiler


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return RunDirectory(tmp_path / "run")


def trained(run, steps, *, at):
    profiler = Profiler(run, attempt=3, rank=1, device=torch.device("cpu"), steps=at)
    for step in steps:
        with profiler.tracing(step):
            torch.ones(4, 4) @ torch.ones(4, 4)


def test_chosen_steps_are_traced(run):
    trained(run, [1, 2, 3], at=[2, 7])
    (trace,) = [path for path in run.root.rglob("*") if path.is_file()]
    assert trace.relative_to(run.root).as_posix() == "profiles/attempt_3/step_000002.rank_1.json.gz"
    assert "aten::mm" in {event["name"] for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]}


def test_a_trace_that_cannot_be_written_stops_nothing(run, capsys):
    (run.root / "profiles").write_text("no folder")
    trained(run, [1], at=[1])
    assert "a trace could not be written; training goes on" in capsys.readouterr().out


def test_an_error_of_the_step_is_the_step_s(run):
    with (
        pytest.raises(ArithmeticError),
        Profiler(run, attempt=1, rank=0, device=torch.device("cpu"), steps=[1]).tracing(1),
    ):
        raise ArithmeticError
    assert list(run.root.iterdir()) == []
