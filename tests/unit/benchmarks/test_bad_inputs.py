"""Bad inputs of every command: a few of each lot, drawn by the seed; ``make campaign`` tries them all."""

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.bad_inputs.__main__ import trials
from benchmarks.bad_inputs.case import Case
from benchmarks.bad_inputs.table import cases
from benchmarks.bad_inputs.trial import attempt, judged
from echorl_testing import campaign

EXPECTED_CASES = 600


def test_every_command_is_tried_and_no_case_twice() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) >= EXPECTED_CASES


@campaign.SAMPLED
@pytest.mark.parametrize("case", campaign.drawn("bad inputs", cases(), 40), ids=lambda case: case.name)
def test_a_few_bad_inputs(case: Case) -> None:
    trial = attempt(case)
    assert not trial.fault, f"{trial.fault}: {trial.words}"


@campaign.ALL
@pytest.mark.timeout(1800)
def test_all_bad_inputs() -> None:
    found = [trial for trial in trials("") if trial.fault]
    assert not found, "\n".join(f"{trial.fault}: {trial.name}: {trial.words}" for trial in found)


def _raises() -> None:
    raise ValueError("a bug")


def _says_nothing() -> None:
    raise typer.Exit(2)


def _refuses() -> None:
    typer.echo("found x; accepted: y", err=True)
    raise typer.Exit(2)


@pytest.mark.parametrize(
    ("command", "seconds", "fault"),
    [(_raises, 0.1, "traceback"), (_says_nothing, 0.1, "silent"), (_refuses, 0.1, ""), (_refuses, 11.0, "hang")],
)
def test_faults_are_told_apart(command: Callable[[], None], seconds: float, fault: str) -> None:
    app = typer.Typer()
    app.command()(command)
    assert judged("one", CliRunner().invoke(app, []), seconds).fault == fault
