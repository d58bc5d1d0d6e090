"""Whether the volume goes with the run: ``storage.retain``, for as long as the run is there."""

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator import names
from echorl_operator.children.target import owner_reference
from echorl_operator.observed.records import Kind
from echorl_operator.plan.actions import ChangeOwner
from echorl_operator.plan.builder import PlanBuilder


def ensure_owner(builder: PlanBuilder, spec: EchoRLRunSpec) -> None:
    """Make the run the owner of its claim, or not, as the manifest says now.

    A claim that a former run of the name left carries that run's uid, and is never touched; nor is one that somebody
    else controls.
    """
    run = builder.observed.run
    claim = builder.child(Kind.CLAIM, names.claim(run.key.name))
    if spec.storage.claim_name is not None or claim is None or claim.meta.owner_uid not in ("", run.uid):
        return
    owned = not spec.storage.retain
    if (claim.meta.owner_uid == run.uid) != owned:
        owner = owner_reference(run.key.name, run.uid)
        builder.do(ChangeOwner("v1", str(Kind.CLAIM), claim.meta.name, claim.meta.uid, owner, owned=owned))
        builder.note("VolumeReleased" if not owned else "VolumeOwned", _told(claim.meta.name, owned=owned))


def _told(claim: str, *, owned: bool) -> str:
    return f"the claim {claim} {'is deleted with' if owned else 'outlives'} the run (storage.retain)"
