"""Bodies of what the broker makes for a run: whose it is, and what its token follows from."""

import hashlib
import secrets

from echorl_broker import labels, profile
from echorl_broker.runs import keeps_warm, provider_of, pull_secrets
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Wanted
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunRecord
from echorl_operator.orchestrators.tokens import Tokens


class Bodies:
    """Those of one installation."""

    def __init__(self, tokens: Tokens, settings: BrokerSettings) -> None:
        self._tokens, self._settings = tokens, settings

    def sandbox(self, run: RunRecord, orchestrator: PodRecord, key: str, wanted: Wanted) -> profile.Object:
        """The pod of the sandbox ``key``; where a pool might have such ones, it says of which shape it is."""
        body = self._pod(run, orchestrator, key, wanted)
        if wanted.gateway and provider_of(run) == "agent-sandbox" and keeps_warm(run):
            body["metadata"]["labels"][labels.SHAPE] = profile.shape_of(wanted)
        return body

    def warm(self, run: RunRecord, orchestrator: PodRecord, wanted: Wanted) -> profile.Object:
        """A pod that nobody has yet."""
        return self._pod(run, orchestrator, None, wanted)

    def pooled(self, run: RunRecord, orchestrator: PodRecord, wanted: Wanted) -> profile.Object:
        """What the pods of a pool are made by; they have one token, for a template tells each of them the same."""
        owner = _owner(run, orchestrator)
        name = labels.pool_name(owner.run, owner.orchestrator_uid, profile.shape_of(wanted))
        return profile.pooled_pod(owner, wanted, self._settings, token_sha256=_digest(self.token(run, name, "")))

    def token(self, run: RunRecord, name: str, nonce: str) -> str:
        """The token of the sandbox, or of all of the pool, of that name and nonce."""
        return self._tokens.sandbox_token(run.uid, name, nonce)

    def _pod(self, run: RunRecord, orchestrator: PodRecord, key: str | None, wanted: Wanted) -> profile.Object:
        nonce, of_run = secrets.token_hex(16), (run.key.name, run.uid)
        name = labels.warm_pod_name(*of_run, nonce) if key is None else labels.pod_name(*of_run, key)
        digest = _digest(self.token(run, name, nonce))
        owner = _owner(run, orchestrator)
        return profile.sandbox_pod(owner, key, wanted, self._settings, nonce=nonce, token_sha256=digest)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _owner(run: RunRecord, orchestrator: PodRecord) -> profile.Owner:
    return profile.Owner(
        namespace=run.key.namespace,
        run=run.key.name,
        uid=run.uid,
        attempt=str(orchestrator.attempt),
        orchestrator_uid=orchestrator.meta.uid,
        image_pull_secrets=pull_secrets(run),
    )
