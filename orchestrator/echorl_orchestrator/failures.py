"""What can go wrong, by who has to act: a user corrects input, an episode is tried again, or the run ends."""

from enum import StrEnum

from echorl_core.names import ExitCode


class BadInputError(ValueError):
    """A model, renderer, environment or hook cannot be used; the message names the field and what is accepted.

    A user has to correct it: the role ends with exit code BAD_INPUT and is not restarted.
    """


class ErrorKind(StrEnum):
    """Why an episode failed. Engines, deadlines and workers are tried again up to ``maxRetries``."""

    PROVIDER = "provider"
    """An engine failed or vanished."""
    TIMEOUT = "timeout"
    """The episode or one call outlasted its deadline."""
    SANDBOX = "sandbox"
    """The worker process that ran the environment died."""
    INVALID_RESPONSE = "invalidResponse"
    """An engine's answer lacks token ids or logprobs."""
    ENV = "env"
    """The environment's own code raised, or returned a value that cannot be used (NaN reward)."""
    PROTOCOL = "protocol"
    """A message or call out of turn."""
    OVERLONG = "overlong"
    """The first prompt leaves no room for a completion."""
    CANCELLED = "cancelled"
    """Ended by the scheduler: stale, drained, or a new attempt."""
    INFRASTRUCTURE = "infrastructure"
    """What the environment's agent or grader ran on failed: a sandbox, its image, a node. Tried once more."""
    HARNESS = "harness"
    """The task cannot be prepared or graded, whatever an agent does; the same again would fail again."""
    AGENT = "agent"
    """The agent failed by itself, in an environment that scores no such episode."""


OF_INFRASTRUCTURE = frozenset(
    {ErrorKind.PROVIDER, ErrorKind.SANDBOX, ErrorKind.INVALID_RESPONSE, ErrorKind.INFRASTRUCTURE}
)
"""What failed is neither the agent nor its task."""
RETRIED = frozenset({ErrorKind.PROVIDER, ErrorKind.TIMEOUT, ErrorKind.SANDBOX, ErrorKind.INVALID_RESPONSE})


class FailureClass(StrEnum):
    """Who has to look at an episode that failed."""

    INFRASTRUCTURE = "infrastructure"
    """What it ran on."""
    HARNESS = "harness"
    """Its task or its environment's own code."""
    AGENT = "agent"
    """What was played; of a timeout nobody can tell more than that."""


def class_of(kind: ErrorKind) -> FailureClass:
    """The class of failures of ``kind``."""
    if kind in OF_INFRASTRUCTURE:
        return FailureClass.INFRASTRUCTURE
    if kind in {ErrorKind.HARNESS, ErrorKind.ENV, ErrorKind.OVERLONG}:
        return FailureClass.HARNESS
    return FailureClass.AGENT


def retries(kind: ErrorKind | None, limit: int) -> int:
    """How often an episode that failed with ``kind`` is tried again, where ``maxRetries`` is ``limit``."""
    if kind is ErrorKind.INFRASTRUCTURE:
        return min(limit, 1)
    return limit if kind in RETRIED else 0


class ClassedError(Exception):
    """A failure whose class the environment knows: it keeps its kind on the way from a worker. Raise a subclass."""

    kind: ErrorKind


class InfrastructureError(ClassedError):
    """What the episode ran on failed: it is played once more, elsewhere, and then left out of everything."""

    kind = ErrorKind.INFRASTRUCTURE


class HarnessError(ClassedError):
    """The task cannot be prepared or graded: the episode is left out of everything; the message names the task."""

    kind = ErrorKind.HARNESS


class AgentError(ClassedError):
    """The agent failed, and the environment does not score that: the episode is left out of everything."""

    kind = ErrorKind.AGENT


class EpisodeError(Exception):
    """An episode's failure, by kind. Anything else that escapes is a bug of ours and ends the role."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class RunFailure(Exception):
    """The run cannot go on; its role ends with this exit code, and the message says why."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class FailureLimit:
    """Ends the run when too many episodes fail one after the other, training and evals together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row = 0

    def another(self) -> "FailureLimit":
        """The same limit, for failures that are counted apart."""
        return FailureLimit(self._limit)

    def note_all(self, failed: int, kind: ErrorKind, message: str) -> None:
        """Count the failed episodes of a group; none: it went well.

        Raises:
            RunFailure: the limit is reached.
        """
        if not failed:
            self.note(None, None)
        for _ in range(failed):
            self.note(kind, message)

    def note(self, kind: ErrorKind | None, message: str | None) -> None:
        """Count an episode's end.

        Raises:
            RunFailure: the limit is reached.
        """
        if kind is ErrorKind.CANCELLED:
            return
        self._in_a_row = 0 if kind is None else self._in_a_row + 1
        if self._in_a_row >= self._limit:
            raise RunFailure(
                ExitCode.ENVIRONMENT,
                f"{self._in_a_row} episodes failed one after the other; the last one: {kind}: {message}",
            )
