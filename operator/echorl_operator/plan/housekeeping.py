"""Small things that an attempt keeps in order: what older renderings left, and a token that somebody took away."""

from echorl_operator import names
from echorl_operator.build.children import token_secret
from echorl_operator.build.rendering import Rendering
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind
from echorl_operator.plan.actions import Create
from echorl_operator.plan.draft import Draft

KEPT_REVISIONS = 3
"""Older renderings that stay, for people to compare with."""


def drop_old_revisions(draft: Draft) -> None:
    """Delete ControllerRevisions that no attempt will be applied from again, but for the newest few."""
    old = [one for one in _revisions(draft) if one.meta.name != draft.memory.revision]
    for revision in sorted(old, key=lambda one: _order(one.meta.name))[:-KEPT_REVISIONS]:
        draft.delete_child(revision, "it is out of use")


def drop_old_configs(draft: Draft, rendering: Rendering) -> None:
    """Delete ConfigMaps of earlier renderings before a gang starts, when no pod of an older attempt is left.

    Engines outlive attempts and are replaced one by one: theirs go once all are of the newest template. An attempt that
    was rendered twice keeps everything: its pods may be of either rendering.
    """
    renderings = [one for one in _revisions(draft) if _order(one.meta.name)[:1] == (draft.memory.attempt,)]
    if len(renderings) != 1:
        return
    wanted = {body["metadata"]["name"] for body in rendering.common if body["kind"] == Kind.CONFIG_MAP}
    engines = draft.child(Kind.DEPLOYMENT, names.inference(rendering.run))
    rolled_out = (
        engines is not None
        and engines.observed_generation >= engines.meta.generation
        and engines.replicas == engines.updated
    )
    for child in draft.observed.children:
        of_engines = child.meta.name.startswith(f"{rendering.run}-{names.PodRole.INFERENCE}-")
        if child.kind is Kind.CONFIG_MAP and child.meta.name not in wanted and (rolled_out or not of_engines):
            draft.delete_child(child, "it is out of use")


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


def _revisions(draft: Draft) -> list[ChildRecord]:
    return [child for child in draft.observed.children if child.kind is Kind.REVISION]


def _order(revision: str) -> tuple[int, ...]:
    """By attempt and generation, which end its name."""
    return tuple(int(part) for part in revision.rsplit("-", 2)[1:] if part.isdigit())
