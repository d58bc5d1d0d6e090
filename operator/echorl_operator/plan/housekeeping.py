"""Small things that a living attempt keeps in order: old ControllerRevisions, and a token that somebody took away."""

from echorl_operator import names
from echorl_operator.build.children import token_secret
from echorl_operator.build.rendering import Rendering
from echorl_operator.observed.records import ContainerPhase, Kind
from echorl_operator.plan.actions import Create
from echorl_operator.plan.draft import Draft

KEPT_REVISIONS = 3
"""Older renderings that stay, for people to compare with."""


def drop_old_revisions(draft: Draft) -> None:
    """Delete ControllerRevisions that no attempt will be applied from again, but for the newest few."""
    old = [
        child
        for child in draft.observed.children
        if child.kind is Kind.REVISION and child.meta.name != draft.memory.revision
    ]
    for revision in sorted(old, key=lambda one: _order(one.meta.name))[:-KEPT_REVISIONS]:
        draft.delete_child(revision, "it is out of use")


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


def _order(revision: str) -> tuple[int, ...]:
    """By attempt and generation, which end its name."""
    return tuple(int(part) for part in revision.rsplit("-", 2)[1:] if part.isdigit())
