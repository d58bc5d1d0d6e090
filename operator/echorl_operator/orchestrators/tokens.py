"""The token that guards calls between a run's roles: derived from one master key, so nothing must be remembered."""

import hashlib
import hmac
from pathlib import Path

_SHORTEST_KEY = 32


class Tokens:
    """Makes each run's token; the same for the Secret of its pods and for our own calls. Never printed."""

    def __init__(self, master_key: bytes) -> None:
        """``master_key``: at least 32 random bytes.

        Raises:
            ValueError: it is shorter.
        """
        if len(master_key) < _SHORTEST_KEY:
            raise ValueError(f"master key: found {len(master_key)} bytes, accepted are {_SHORTEST_KEY} or more")
        self._key = master_key

    def __repr__(self) -> str:
        return "Tokens(...)"

    def token(self, run_uid: str) -> str:
        """HMAC-SHA256 of the run's uid, in hexadecimal."""
        if not run_uid:
            raise ValueError("run uid: found an empty text; the token would not belong to one run")
        return hmac.new(self._key, run_uid.encode(), hashlib.sha256).hexdigest()

    def sandbox_token(self, run_uid: str, pod: str, nonce: str) -> str:
        """What a sandbox's daemon wants of who gives it commands; nobody comes from it to another, nor from a run's."""
        return hmac.new(self._key, f"sandbox\0{run_uid}\0{pod}\0{nonce}".encode(), hashlib.sha256).hexdigest()


def from_file(path: Path) -> Tokens:
    """Read the master key, without white space around it.

    Raises:
        ValueError: the file cannot be read or its key is too short; the message names the file, never the key.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"master key file {path}: {error.strerror}") from error
    try:
        return Tokens(key)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
