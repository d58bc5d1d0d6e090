"""One task of software engineering, whatever format it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

LONGEST_STATEMENT_BYTES = 256 << 10
LONGEST_PATCH_BYTES = 16 << 20
LONGEST_COMMAND_BYTES = 64 << 10


@dataclass(frozen=True)
class SuiteGrader:
    """Runs test files with a runner of ours, which reports test by test: the fix passes what it must."""

    runner: Literal["pytest", "unittest"]
    files: tuple[str, ...]
    """What is run, below the workdir. They are put back before they run, whatever the agent made of them."""
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    patch: bytes = b""
    """A diff that brings the tests, against the base commit."""
    python: str = "python3"

    @property
    def required(self) -> tuple[str, ...]:
        """Ids of all tests that must pass."""
        return (*self.fail_to_pass, *self.pass_to_pass)


@dataclass(frozen=True)
class CommandGrader:
    """Runs a shell command in the workdir: exit code 0 is a fix."""

    command: str
    suite: bool = False
    """Whether the command runs pytest, so that a suite must be seen to have run: an exit code alone can be faked."""
    reward_file: str | None = None
    """Where the command writes a number from 0 to 1, which then counts in place of its exit code."""


Grader = SuiteGrader | CommandGrader


@dataclass(frozen=True)
class Row:
    """A task: where it is played, what is said, and how a fix is graded."""

    key: str
    image: str
    workdir: str
    statement: str
    grader: Grader
    setup: tuple[str, ...] = ()
    """Shell commands, run as root in the workdir in every sandbox of the row, each of which must succeed."""
    base_commit: str | None = None
    """Must be HEAD, or an ancestor of it, after the set-up. None: whatever is there."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Written into the workdir before the set-up."""
    test_files: Mapping[str, bytes] = field(default_factory=dict)
    """Written before the tests run and never before: below the workdir, or by an absolute path."""
    gold: bytes | None = None
    """A diff that fixes it."""
    solution: str | None = None
    """Or a shell script that does."""
