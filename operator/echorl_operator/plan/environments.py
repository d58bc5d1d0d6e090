"""Servers of environments that are images. They are applied with what attempts share, and outlive attempts."""

from echorl_operator import names
from echorl_operator.children.assembly import common
from echorl_operator.children.rendering import Rendering
from echorl_operator.observed.records import ChildRecord, Kind
from echorl_operator.plan.builder import PlanBuilder


def unready_servers(builder: PlanBuilder, rendering: Rendering) -> list[str]:
    """Names of the servers that have no ready pod, or still have one of an earlier manifest."""
    servers = (body["metadata"]["name"] for body in common(rendering) if body["kind"] == Kind.DEPLOYMENT)
    return [name for name in servers if not _serves(builder.child(Kind.DEPLOYMENT, name))]


def _serves(server: ChildRecord | None) -> bool:
    if server is None or server.observed_generation < server.meta.generation:
        return False
    return server.ready > 0 and server.updated == server.replicas


def end_servers(builder: PlanBuilder) -> None:
    """Delete them, those of earlier manifests too: nothing of a run that goes on later rests on them."""
    run = builder.observed.run
    for child in builder.observed.children:
        if (
            child.kind is Kind.DEPLOYMENT
            and child.meta.owner_uid == run.uid
            and child.meta.name != names.inference(run.key.name)
        ):
            builder.delete_child(child, "nothing is played any more")
