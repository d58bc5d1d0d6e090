"""Runs tests and reports each by its id. Put into the sandbox that grades; runs on whatever Python the task has (3.6).

As a program, ``python3 echorl_report.py pytest|unittest FILE...``: the folder that tests are run in comes onto the
path only after the runner was imported, so that no file in there can stand in for it. As a plugin of pytest's,
``-p echorl_report``: it notes what any command's pytest does. Where the report goes to is said by ``ECHORL_REPORT``,
which is taken out of the environment before code of the task runs.
"""

import json
import os
import sys

PLACE = os.environ.pop("ECHORL_REPORT", "")
TESTS = {}  # type: ignore[var-annotated]  # 3.6 in the sandbox: ids -> outcomes
_RANK = {"passed": 0, "xfailed": 1, "skipped": 2, "failed": 3, "error": 4}


def note(name: str, outcome: str) -> None:
    """A test's outcome; of its phases the worst counts."""
    if _RANK[outcome] >= _RANK.get(TESTS.get(name, "passed"), 0):
        TESTS[name] = outcome


def write() -> None:
    """The report, as a whole; another run of the same command adds to it."""
    if not PLACE:
        return
    tests = dict(TESTS)
    try:
        with open(PLACE) as before:  # noqa: PTH123
            for name, outcome in json.load(before)["tests"].items():
                if _RANK[outcome] >= _RANK.get(tests.get(name, "passed"), 0):
                    tests[name] = outcome
    except OSError:
        pass
    with open(PLACE + ".part", "w") as report:  # noqa: PTH123
        json.dump({"tests": tests, "finished": True}, report)
    os.replace(PLACE + ".part", PLACE)  # noqa: PTH105


def pytest_runtest_logreport(report) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Pytest's: one phase of a test has ended."""
    if hasattr(report, "wasxfail") and report.outcome in ("skipped", "passed"):
        note(report.nodeid, "xfailed" if report.outcome == "skipped" else "passed")
    elif report.outcome == "failed" and report.when != "call":
        note(report.nodeid, "error")
    elif report.outcome != "passed" or report.when == "call":
        note(report.nodeid, report.outcome)


def pytest_collectreport(report) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Pytest's: a file or class was looked through."""
    if report.outcome == "failed":
        note(report.nodeid or "collection", "error")


def pytest_sessionfinish() -> None:
    """Pytest's: all tests have run."""
    write()


def run_pytest(files: "list[str]") -> int:
    """Run files by pytest; its exit code."""
    import unittest.mock  # noqa: F401, PLC0415 - pytest would look for it once the task's folder is on the path

    import pytest  # noqa: PLC0415

    here = os.getcwd()  # noqa: PTH109
    sys.path.insert(0, here)
    options = ["-p", "no:cacheprovider", "--rootdir", here, "-q"]
    return int(pytest.main(options + files, plugins=[sys.modules[__name__]]))


def run_unittest(files: "list[str]") -> int:
    """Run files by unittest; 0 if all went well."""
    import unittest  # noqa: PLC0415

    class Noted(unittest.TextTestResult):
        """Notes what it hears."""

        def addSuccess(self, test) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, N802
            """Went well."""
            super().addSuccess(test)
            note(test.id(), "passed")

        def addFailure(self, test, err) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, N802
            """Did not hold."""
            super().addFailure(test, err)
            note(test.id(), "failed")

        def addError(self, test, err) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, N802
            """Raised."""
            super().addError(test, err)
            note(test.id(), "error")

        def addSkip(self, test, reason) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, N802
            """Did not run."""
            super().addSkip(test, reason)
            note(test.id(), "skipped")

        def addSubTest(self, test, subtest, err) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, N802
            """A part of it has ended."""
            super().addSubTest(test, subtest, err)
            if err is not None:
                note(test.id(), "failed")

    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    suite = unittest.TestSuite()
    well = True
    for name in [name[: -len(".py")].replace("/", ".") for name in files]:
        try:
            suite.addTests(unittest.defaultTestLoader.loadTestsFromName(name))
        except Exception as error:
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            note(name, "error")
            well = False
    result = unittest.TextTestRunner(resultclass=Noted, verbosity=0).run(suite)  # type: ignore[arg-type]  # which typeshed says otherwise
    write()
    return 0 if well and result.wasSuccessful() else 1


def main() -> int:
    """Run what is asked for."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [place for place in sys.path if place not in ("", own, os.getcwd())]  # noqa: PTH109
    run = {"pytest": run_pytest, "unittest": run_unittest}[sys.argv[1]]
    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
