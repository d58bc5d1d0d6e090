"""Who a process is: the run's uid and the attempt it belongs to. Readers refuse messages of another attempt."""

from collections.abc import Mapping
from dataclasses import dataclass

from echorl_core import names


@dataclass(frozen=True)
class RunIdentity:
    """One attempt of one run."""

    name: str
    uid: str
    attempt: int

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "RunIdentity":
        """Read the identity that the supervisor or the operator gave this process.

        Raises:
            ValueError: a variable is missing, or the attempt is no positive integer.
        """
        missing = [key for key in (names.ENV_RUN_NAME, names.ENV_RUN_UID, names.ENV_ATTEMPT) if not environ.get(key)]
        if missing:
            raise ValueError(f"environment variables are missing: {', '.join(missing)}")
        raw = environ[names.ENV_ATTEMPT]
        if not raw.isdigit() or int(raw) < 1:
            raise ValueError(f"{names.ENV_ATTEMPT}: found {raw!r}, accepted is an integer from 1")
        return cls(environ[names.ENV_RUN_NAME], environ[names.ENV_RUN_UID], int(raw))

    def environment(self) -> dict[str, str]:
        """The variables that ``from_environment`` reads."""
        return {
            names.ENV_RUN_NAME: self.name,
            names.ENV_RUN_UID: self.uid,
            names.ENV_ATTEMPT: str(self.attempt),
        }

    def headers(self) -> dict[str, str]:
        """HTTP headers that name this attempt."""
        return {names.HEADER_RUN: self.uid, names.HEADER_ATTEMPT: str(self.attempt)}

    def refusal(self, headers: Mapping[str, str]) -> str | None:
        """Why a message with these headers is not for this attempt; None if it is."""
        uid, attempt = headers.get(names.HEADER_RUN), headers.get(names.HEADER_ATTEMPT)
        if uid != self.uid:
            return f"message of run {uid!r}; this is run {self.uid!r}"
        if attempt != str(self.attempt):
            return f"message of attempt {attempt!r}; this is attempt {self.attempt}"
        return None
