"""Names that more than one role must spell the same way: roles, headers, environment variables, exit codes."""

from enum import IntEnum, StrEnum


class Role(StrEnum):
    """One part of a run: a set of processes or pods with one job."""

    TRAINER = "trainer"
    INFERENCE = "inference"
    ORCHESTRATOR = "orchestrator"


class Phase(StrEnum):
    """Where a run stands; one word for people (``status.phase``)."""

    PENDING = "Pending"
    PREPARING = "Preparing"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ExitCode(IntEnum):
    """What the end of a role's process means; the supervisor and the operator decide by it.

    Every other code, and every signal, is a crash: the role is restarted within ``maxRestarts``.
    """

    OK = 0
    """The role finished its work."""
    CRASH = 1
    """An unexpected error: restart."""
    BAD_INPUT = 2
    """The manifest, a config, a path or a hook is wrong: never restarted."""
    NON_FINITE = 3
    """Loss or gradients were NaN or infinite: never restarted."""
    ENVIRONMENT = 4
    """Too many consecutive episodes failed: never restarted."""
    FENCED = 5
    """The process belongs to an older attempt: never restarted."""
    LEASE_LOST = 6
    """An engine's pause lease ran out during an apply: restart the engine alone."""
    STOPPED = 7
    """The run stopped on request after its last checkpoint."""
    NOTHING_TO_TRAIN = 8
    """No batch with a trainable token within the allowed tries: never restarted."""
    NOTICE = 9
    """The role was given notice and has ended by it: restarted, and no fault of its own."""


NEVER_RESTARTED = frozenset(
    {
        ExitCode.BAD_INPUT,
        ExitCode.NON_FINITE,
        ExitCode.ENVIRONMENT,
        ExitCode.FENCED,
        ExitCode.NOTHING_TO_TRAIN,
    }
)

# Environment variables that carry a process's identity. Configs are the same for every attempt; the identity is not.
ENV_RUN_NAME = "ECHORL_RUN_NAME"
ENV_RUN_UID = "ECHORL_RUN_UID"
ENV_ATTEMPT = "ECHORL_ATTEMPT"
ENV_ADMIN_TOKEN = "ECHORL_ADMIN_TOKEN"  # noqa: S105 - the variable's name, not a secret
ENV_TEACHER_KEY = "ECHORL_TEACHER_KEY"
ENV_FAULTS = "ECHORL_FAULTS"

# What a pod tells its processes besides; unset on one machine.
ENV_PODS = "ECHORL_PODS"
"""Pods of the trainer gang."""
ENV_POD_INDEX = "ECHORL_POD_INDEX"
"""Which of them this is, from 0."""
ENV_RANKS_PER_POD = "ECHORL_RANKS_PER_POD"
"""Trainer processes of each of them."""
ENV_GANG_PORT = "ECHORL_GANG_PORT"
"""Where the gang's first pod, at ``MASTER_ADDR``, hears how the others' ranks ended; needed for restarts in place."""
ENV_GANG_MEMBERS = "ECHORL_GANG_MEMBERS"
"""``host:port`` of each of the gang's pods by its index, separated by commas; needed for copies at a neighbour."""
ENV_ADVERTISE_HOST = "ECHORL_ADVERTISE_HOST"
"""Name or address that other pods reach this one by; it overrides the config's ``advertise_host``."""
ENV_TERMINATION_LOG = "ECHORL_TERMINATION_LOG"
"""File for a role's termination message. Empty: the kubelet's own, ``/dev/termination-log``. Unset: none is written."""

ENV_MEMORY = "ECHORL_MEMORY"
"""Descriptors of a trainer rank's slots in memory that outlives it; unset: it has none."""
ENV_MIRROR = "ECHORL_MIRROR"
"""Descriptor of what a rank and its pod tell each other of the copies at a neighbour; unset: there are none."""
ENV_RESTARTS = "ECHORL_RESTARTS"
"""How many times the ranks were started again in their attempt, to go on from there; unset: never."""
ENV_RESTART_REASON = "ECHORL_RESTART_REASON"
"""Why they were, the last time."""
ENV_REPLACED = "ECHORL_REPLACED"
"""In how many of these restarts another pod took the place of a lost one; unset: in none."""

ENV_GRACE = "ECHORL_GRACE_S"
"""Seconds between SIGTERM and SIGKILL. With it SIGTERM is a notice (``notices.py``); unset: it ends a role at once."""

# HTTP headers of every message between roles.
HEADER_RUN = "X-EchoRL-Run"
HEADER_ATTEMPT = "X-EchoRL-Attempt"
HEADER_WIRE = "X-EchoRL-Wire"
HEADER_TOKEN = "X-EchoRL-Token"  # noqa: S105 - the header's name
HEADER_RESTARTS = "X-EchoRL-Restarts"
"""Of a trainer rank's messages: how many restarts in place came before it. Older ones are refused."""
HEADER_BOOT = "X-EchoRL-Boot"
HEADER_VERSION = "X-EchoRL-Version"
HEADER_SESSION = "X-Session-ID"

SERVED_MODEL_NAME = "policy"
"""What requests call the policy: the model, or where an adapter trains, the adapter."""
SERVED_BASE_NAME = "base"
"""What requests call the model under an adapter."""
SECRET_VARIABLE_PREFIX = "ECHORL_SECRET_"  # noqa: S105 - the beginning of a name
RESERVED_ENVIRONMENT_NAME = "all"


def secret_variable(secret: str) -> str:
    """Environment variable that holds the key of a Secret; on one machine it is set by hand.

    >>> secret_variable("judge-key")
    'ECHORL_SECRET_JUDGE_KEY'
    """
    return SECRET_VARIABLE_PREFIX + secret.upper().replace("-", "_").replace(".", "_")
