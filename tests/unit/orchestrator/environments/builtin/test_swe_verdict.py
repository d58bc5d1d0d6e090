"""Which test runs count as a fix."""

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.verdict import (
    SuiteReport,
    Verdict,
    of_command,
    of_suite,
    read_report,
)


def report(**tests: str) -> SuiteReport:
    return SuiteReport({name.replace("__", "::"): outcome for name, outcome in tests.items()}, finished=True)


WELL = report(a__x="passed", a__y="passed")


def test_all_that_is_required_must_have_passed() -> None:
    assert of_suite(WELL, 0, ["a::x", "a::y"]) == Verdict(1.0, "all tests pass", 2)
    # What is not required may fail, and the run's exit code with it.
    assert of_suite(report(a__x="passed", a__z="failed"), 1, ["a::x"]).reward == 1.0
    missing = of_suite(WELL, 0, ["a::x", "a::gone"])
    assert (missing.reward, missing.failed, missing.valid) == (0.0, ["a::gone"], True)


@pytest.mark.parametrize(("outcome", "reward"), [("xfailed", 1.0), ("skipped", 0.0), ("error", 0.0), ("failed", 0.0)])
def test_a_skipped_test_has_not_passed(outcome: str, reward: float) -> None:
    assert of_suite(report(a__x=outcome, a__y="passed"), int(outcome in {"failed", "error"}), ["a::x"]).reward == reward


def test_ids_whose_parameters_were_cut_off_are_matched_by_their_beginning() -> None:
    tests = {"a::x[one two]": "passed", "a::x[one three]": "passed", "a::x[two]": "failed"}
    found = SuiteReport(tests, finished=True)
    assert of_suite(found, 1, ["a::x[one"]).reward == 1.0
    assert of_suite(found, 1, ["a::x["]).reward == 0.0
    assert of_suite(found, 1, ["a::x"]).reward == 0.0


@pytest.mark.parametrize(
    ("found", "code", "reason"),
    [
        (None, 0, "ended with 0 before it could report"),
        (SuiteReport({"a": "passed"}, finished=False), 0, "ended with 0 before it could report"),
        (report(), 0, "no test ran"),
        (report(a="skipped"), 0, "no test ran"),
        (WELL, 3, "ended with 3 and reported no failure"),
    ],
)
def test_a_run_that_says_nothing_is_no_success(found: SuiteReport | None, code: int, reason: str) -> None:
    for verdict in (of_suite(found, code, ["a::x"]), of_command(code, found, suite=True, reward=None)):
        assert (verdict.reward, verdict.valid) == (0.0, False)
        assert reason in verdict.reason


def test_nothing_required_is_nothing_shown() -> None:
    assert of_suite(WELL, 0, []).reward == 0.0


@pytest.mark.parametrize(
    ("code", "found", "suite", "written", "reward"),
    [
        (0, None, False, None, 1.0),
        (2, None, False, None, 0.0),
        (0, WELL, True, None, 1.0),
        (0, report(a="passed", b="failed"), True, None, 0.0),
        (0, None, False, b"0.25\n", 0.25),
        (1, report(a="failed"), True, b"0.5", 0.5),
        (0, None, True, b"1", 0.0),
        (0, None, False, b"2", 0.0),
        (0, None, False, b"nan", 0.0),
        (0, None, False, b"\xff", 0.0),
    ],
)
def test_commands_are_believed_as_far_as_they_go(
    code: int, found: SuiteReport | None, suite: bool, written: bytes | None, reward: float
) -> None:
    assert of_command(code, found, suite=suite, reward=written).reward == reward


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"tests": 3, "finished": true}', b"\xff", b"[" * 100_000])
def test_what_is_no_report_is_none(data: bytes) -> None:
    assert read_report(data) is None


def test_a_report_is_read() -> None:
    assert read_report(b'{"tests": {"a": "passed"}, "finished": true}') == SuiteReport({"a": "passed"}, finished=True)
