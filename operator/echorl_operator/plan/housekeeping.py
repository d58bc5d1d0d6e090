"""Small things that an attempt keeps in order: a token that somebody took away."""

from echorl_operator import names
from echorl_operator.build.children import token_secret
from echorl_operator.build.rendering import Rendering
from echorl_operator.observed.records import ContainerPhase
from echorl_operator.plan.actions import Create
from echorl_operator.plan.draft import Draft


def restore_token(draft: Draft, rendering: Rendering) -> None:
    """Make the run's token anew if a pod cannot start without it: secrets are not watched."""
    name = names.token(draft.observed.run.key.name)
    waiting = (
        one
        for pod in draft.observed.pods
        for one in pod.containers
        if one.phase is ContainerPhase.WAITING and one.reason == "CreateContainerConfigError"
    )
    if any(f'"{name}" not found' in one.message for one in waiting):
        draft.do(Create(token_secret(rendering, draft.token)))
