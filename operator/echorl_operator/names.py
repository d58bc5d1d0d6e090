"""Names that the operator, the API server and users spell the same way: labels, annotations, child names. Pure."""

from enum import StrEnum

from echorl_manifest.models import base

GROUP, VERSION, PLURAL, KIND = base.API_GROUP, base.VERSION, base.PLURAL, base.KIND

FIELD_MANAGER = "echorl-operator"

LABEL_RUN = f"{GROUP}/run"
LABEL_RUN_UID = f"{GROUP}/run-uid"
LABEL_ROLE = f"{GROUP}/role"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_ENVIRONMENT = f"{GROUP}/environment"
"""Which environment a server's pod serves."""
LABEL_NAME = "app.kubernetes.io/name"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
OUR_LABELS = frozenset(
    {LABEL_RUN, LABEL_RUN_UID, LABEL_ROLE, LABEL_ATTEMPT, LABEL_NAME, LABEL_COMPONENT, LABEL_MANAGED_BY}
)
MANAGED_BY = "echorl-operator"
APP_NAME = "echorl"

ANNOTATION_HASH = f"{GROUP}/hash"
"""Hash of the object that was applied last, so that a changed list element cannot hide in a superset."""
ANNOTATION_RETRY = f"{GROUP}/retry"
"""When a workload's controller was last made to look at it again."""
NO_STEP = "NoStep"
"""Reason of the condition ``Stalled`` where a run makes no step; with any other it repeats another condition."""
SANDBOX = "sandbox"
"""Role of the pods that agents and graders of a run live in; the broker makes them."""
SANDBOXES_MANAGED_BY = "echorl-broker"
SANDBOXES = f"{LABEL_ROLE}={SANDBOX},{LABEL_MANAGED_BY}={SANDBOXES_MANAGED_BY}"
"""Selects every sandbox pod."""
LABEL_GATEWAY = f"{GROUP}/gateway"
"""``allowed`` on the sandboxes that may reach the run's gateway."""
LABEL_WARM = f"{GROUP}/sandbox-warm"
"""On a sandbox that was made before anybody asked for it: digest of what it was made by."""
LABEL_CLAIM = f"{GROUP}/sandbox-claim"
"""On such a one since somebody has it: digest of that one's key."""
SCHEDULING_GATE = f"{GROUP}/attempt"
"""Holds trainer pods back until the whole gang of an attempt is there and prepare has finished."""


class PodRole(StrEnum):
    """What a pod of a run does. Values are labels."""

    TRAINER = "trainer"
    INFERENCE = "inference"
    ORCHESTRATOR = "orchestrator"
    PREPARE = "prepare"
    ENVIRONMENT = "environment"
    """Serves an environment that is an image."""


def trainer(run: str) -> str:
    """StatefulSet and headless Service of the gang; its pods are ``<this>-<ordinal>``."""
    return f"{run}-trainer"


def inference(run: str) -> str:
    """Deployment and headless Service of the engines."""
    return f"{run}-inference"


def orchestrator(run: str) -> str:
    """The orchestrator's pod and Service. One name for all attempts: there can never be two."""
    return f"{run}-orchestrator"


def environment(run: str, name: str) -> str:
    """Deployment and Service of the server of an environment that is an image."""
    return f"{run}-env-{name}"


def prepare(run: str, attempt: int) -> str:
    """The pod that prepares an attempt; each attempt has one of its own."""
    return f"{run}-prepare-{attempt}"


def token(run: str) -> str:
    """Secret with the token that guards calls between a run's roles."""
    return f"{run}-token"


def claim(run: str) -> str:
    """The volume claim that is made for a run that names none."""
    return f"{run}-volume"


def role_account(run: str, role: PodRole) -> str:
    """ServiceAccount of a role's pods; it has no rights and its token is not mounted."""
    return f"{run}-{role}"


def revision(run: str, attempt: int, generation: int) -> str:
    """ControllerRevision that freezes how an attempt is rendered since the run's ``generation``."""
    return f"{run}-{attempt}-{generation}"
