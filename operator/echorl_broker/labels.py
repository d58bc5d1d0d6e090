"""Names that the broker, the operator's NetworkPolicies and the API server spell the same way. Pure."""

import hashlib

from echorl_operator import names

ORCHESTRATOR_UID = f"{names.GROUP}/orchestrator-uid"
"""Label: uid of the orchestrator's pod that it was made for. It is of no use to another one."""
KEY = f"{names.GROUP}/sandbox-key"
"""Annotation: what the orchestrator calls it."""
NONCE = f"{names.GROUP}/sandbox-nonce"
"""Annotation: what its token is derived from, besides the run and its name."""
TTL = f"{names.GROUP}/sandbox-ttl-seconds"
"""Annotation: the longest that it lives."""

_LONGEST_RUN = 38


def pod_name(run: str, run_uid: str, key: str) -> str:
    """Name of the pod of a sandbox, the same whoever asks; at most 63 characters.

    The run's name is for people: what makes it the run's own is a digest of its uid and the key.
    """
    digest = hashlib.sha256(f"{run_uid}/{key}".encode()).hexdigest()[:16]
    return f"{run[:_LONGEST_RUN].rstrip('-')}-sandbox-{digest}"


def of_run(run_uid: str) -> str:
    """Selects the sandbox pods of one run."""
    return f"{names.SANDBOXES},{names.LABEL_RUN_UID}={run_uid}"
