"""What holds for every test: logging, signals and threads start as they should, no example is too slow; skips count."""

import logging
import os
import signal
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from echorl_testing import campaign

# Hypothesis gives each example 200 ms, unless it sees a variable CI: a busy machine takes longer.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Programs that tests start can be interrupted.

    What a shell without job control puts into the background ignores SIGINT, and so does all that it starts.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Name the seed, so that a run can be made again: ECHORL_SEED=..."""
    return f"campaigns are sampled with ECHORL_SEED={campaign.seed()}"


@pytest.fixture(autouse=True)
def untouched_logging() -> Iterator[None]:
    """A test that configures a role's logs leaves none of it to the next one."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = before


@pytest.fixture(autouse=True)
def untouched_switch_interval() -> Iterator[None]:
    """What a test has threads share Python's lock by is no matter of the next one."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """With CI=true a test that is skipped for lack of privileges fails; only a missing GPU may skip."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true" and not item.get_closest_marker("gpu"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI=true: {report.longrepr}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests did not run, and why."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"{count} not run here: {reason}")
