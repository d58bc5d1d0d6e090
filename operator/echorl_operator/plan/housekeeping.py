"""Children that are created and never changed, and small things that an attempt keeps in order."""

from echorl_operator import names
from echorl_operator.children.assembly import common, token_secret
from echorl_operator.children.rendering import Rendering
from echorl_operator.observed.records import ContainerPhase, Kind
from echorl_operator.plan.actions import Create
from echorl_operator.plan.builder import PlanBuilder

CREATED_ONLY = frozenset({Kind.CLAIM, Kind.SECRET})
"""Made just before an attempt's prepare pod, and never changed. One that an earlier run of the name left is taken as it
is; secrets are not watched, so that the operator needs no right to read them."""


def create_once(builder: PlanBuilder, rendering: Rendering) -> None:
    """Make what is only created; what is there already stays as it is."""
    builder.do(*(Create(body) for body in common(rendering) if Kind(body["kind"]) in CREATED_ONLY))
    builder.do(Create(token_secret(rendering, builder.token)))


def restore_token(builder: PlanBuilder, rendering: Rendering) -> None:
    """Make the run's token anew if a pod cannot start without it: secrets are not watched."""
    name = names.token(builder.observed.run.key.name)
    waiting = (
        container
        for pod in builder.observed.pods
        for container in pod.containers
        if container.phase is ContainerPhase.WAITING and container.reason == "CreateContainerConfigError"
    )
    if any(f'"{name}" not found' in container.message for container in waiting):
        builder.do(Create(token_secret(rendering, builder.token)))
