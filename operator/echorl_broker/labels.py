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
CLAIMED_AT = f"{names.GROUP}/sandbox-claimed-at"
"""Annotation: when a warm one became somebody's, in seconds since the epoch."""

SHAPE = f"{names.GROUP}/sandbox-shape"
"""Label: digest of what a sandbox that others may be like was made by."""

_LONGEST_RUN, _LONGEST_RUN_OF_POOL = 38, 32


def pod_name(run: str, run_uid: str, key: str) -> str:
    """Name of the pod of a sandbox, the same whoever asks; at most 63 characters.

    The run's name is for people: what makes it the run's own is a digest of its uid and the key.
    """
    return f"{run[:_LONGEST_RUN].rstrip('-')}-sandbox-{digest_of(f'{run_uid}/{key}')}"


def warm_pod_name(run: str, run_uid: str, nonce: str) -> str:
    """Name of the pod of a sandbox that has no key yet; of no key ``pod_name`` is the same."""
    return pod_name(run, run_uid, f"/{nonce}")


def pool_name(run: str, orchestrator_uid: str, shape: str) -> str:
    """Name of a pool of sandboxes of one shape, for one orchestrator; with five characters more, of one in it."""
    return f"{run[:_LONGEST_RUN_OF_POOL].rstrip('-')}-warm-{digest_of(f'{orchestrator_uid}/{shape}')}"


def digest_of(words: str) -> str:
    """A short name for something, such as the value of a label."""
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def of_run(run_uid: str) -> str:
    """Selects the sandbox pods of one run."""
    return f"{names.SANDBOXES},{names.LABEL_RUN_UID}={run_uid}"


def warm_of(run_uid: str) -> str:
    """Selects those of one run that nobody has yet."""
    return f"{of_run(run_uid)},{names.LABEL_WARM},!{names.LABEL_CLAIM}"


def of_shape(run_uid: str, shape: str) -> str:
    """Selects those of one run that others may be like, of one shape."""
    return f"{of_run(run_uid)},{SHAPE}={shape}"


def claimed_of(run_uid: str, key: str) -> str:
    """Selects those of one run that were warm until somebody asked for this key."""
    return f"{of_run(run_uid)},{names.LABEL_CLAIM}={digest_of(key)}"
