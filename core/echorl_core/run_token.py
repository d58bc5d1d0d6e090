"""The run's token: who holds it may change the run. The key that reads published weights follows from it."""

import hashlib
import hmac


def weights_key(token: str) -> str:
    """The key that fetches published weights and may do nothing else (hex).

    An engine sends it to an address that it was told. Whoever owns that address learns the key, and cannot come from
    it to the token.
    """
    return hmac.new(token.encode(), b"published weights", hashlib.sha256).hexdigest()


def sandboxes_key(token: str) -> str:
    """The key that asks a broker for the run's sandboxes and may do nothing else (hex).

    Workers that run environments' code hold it; the token itself they never see.
    """
    return hmac.new(token.encode(), b"sandboxes", hashlib.sha256).hexdigest()


def is_same(given: str | None, secret: str) -> bool:
    """Whether a header's value is the secret, compared in constant time; a missing or an empty one never is."""
    # A header may hold any bytes, which HTTP libraries hand on as lone surrogates.
    return bool(given) and hmac.compare_digest((given or "").encode(errors="surrogateescape"), secret.encode())
