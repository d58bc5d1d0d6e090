"""From what a test run left behind to whether the fix holds. What the tests printed is never looked at.

A run that says nothing, ran nothing, or failed without naming a failure is no success, whatever its exit code.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_PASSED = frozenset({"passed", "xfailed"})
_RAN = frozenset({"passed", "failed", "error", "xfailed"})


@dataclass(frozen=True)
class SuiteReport:
    """What the runner inside reported."""

    tests: Mapping[str, str]
    """Outcome by id: passed, failed, error, skipped or xfailed."""
    finished: bool
    """Whether the runner came to its end."""

    @property
    def failed(self) -> bool:
        """Whether the runner came to its end and saw a test that failed."""
        return self.finished and any(outcome in _RAN - _PASSED for outcome in self.tests.values())


@dataclass(frozen=True)
class Verdict:
    """Whether the task is solved, and why not."""

    reward: float
    reason: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    """Required tests that did not pass, the first hundred."""
    valid: bool = True
    """Whether the run says anything about the fix; one that does not is no success either."""


def read_report(data: bytes) -> SuiteReport | None:
    """The report that ``data`` is; None where it is none."""
    try:
        found = json.loads(data)
        tests = {str(name): str(outcome) for name, outcome in found["tests"].items()}
        return SuiteReport(tests, finished=found["finished"] is True)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def of_suite(report: SuiteReport | None, code: int, required: Sequence[str] | None) -> Verdict:
    """The verdict on a suite that ended with exit code ``code``.

    Args:
        report: what its runner reported; None if nothing.
        code: of the run.
        required: ids that must have passed; None: all that ran.
    """
    if report is None or not report.finished:
        return Verdict(0.0, f"the test run ended with {code} before it could report", valid=False)
    ran = {name: outcome for name, outcome in report.tests.items() if outcome in _RAN}
    if not ran:
        return Verdict(0.0, "no test ran", valid=False)
    bad = [name for name, outcome in ran.items() if outcome not in _PASSED]
    if code != 0 and not bad:
        return Verdict(0.0, f"the test run ended with {code} and reported no failure", valid=False)
    passed = len(ran) - len(bad)
    if required is None:
        missing = bad
    else:
        missing = [name for name in required if not _holds(name, report.tests)]
        if not required:
            return Verdict(0.0, "no test is required", valid=False)
    if missing:
        return Verdict(0.0, f"{len(missing)} tests did not pass: {', '.join(missing[:3])}", passed, missing[:100])
    return Verdict(1.0, "all tests pass", passed)


def _holds(name: str, tests: Mapping[str, str]) -> bool:
    """Whether a required test passed. An id whose parameters were cut off stands for all that begin with it."""
    if name in tests:
        return tests[name] in _PASSED
    if "[" in name and not name.endswith("]"):
        found = [outcome for known, outcome in tests.items() if known.startswith(name)]
        return bool(found) and all(outcome in _PASSED for outcome in found)
    return False


def of_command(code: int, report: SuiteReport | None, *, suite: bool, reward: bytes | None) -> Verdict:
    """The verdict on a command of the row's own.

    Args:
        code: its exit code.
        report: of the suite that it ran, if one was seen.
        suite: whether one must have been seen.
        reward: what it wrote as its reward, if anything.
    """
    if suite:
        ran = of_suite(report, code, None)
        if not ran.valid:
            return ran
        if reward is None and ran.reward == 0.0:
            return ran
    if reward is not None:
        return _written(reward)
    return Verdict(1.0, "exit code 0") if code == 0 else Verdict(0.0, f"exit code {code}")


def _written(reward: bytes) -> Verdict:
    try:
        number = float(reward.decode().strip())
    except (UnicodeDecodeError, ValueError):
        number = float("nan")
    if not 0.0 <= number <= 1.0:
        return Verdict(0.0, f"the reward file holds {reward[:40]!r}, accepted is a number from 0 to 1", valid=False)
    return Verdict(number, f"the reward file says {number:g}")
