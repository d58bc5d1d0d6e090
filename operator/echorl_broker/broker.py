"""What the broker answers: sandboxes of one run, to who has its key. No state: any replica goes on with any call."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakValueDictionary

import structlog

from echorl_broker import image_volumes, labels, profile
from echorl_broker.agent_sandbox import AgentSandboxes
from echorl_broker.bodies import Bodies
from echorl_broker.losses import Lost, Up, Waits, state_of
from echorl_broker.metrics import BrokerMetrics
from echorl_broker.pods import Cluster, SandboxPod
from echorl_broker.pools import WarmPools
from echorl_broker.runs import keeps_warm, most_pods, provider_of, sandboxes_of, within
from echorl_broker.settings import BrokerSettings
from echorl_broker.warm import WarmPods
from echorl_core.run_token import is_same, sandboxes_key
from echorl_core.wire.sandboxes import KEY_FORM, LONGEST_WAIT_S, Pending, Ready, Wanted, Why
from echorl_manifest.models.base import is_namespace
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.children.cluster_placement import orchestrator_address
from echorl_operator.diagnosis import refusals
from echorl_operator.kube import errors
from echorl_operator.observed.records import Meta, PodRecord
from echorl_operator.observed.runs import RunRecord
from echorl_operator.orchestrators.tokens import Tokens

_NOBODY = "there is no such run here, or this is not its key"
_PAUSE_S = 1.0
_LATER = frozenset({"QuotaExceeded", "ServiceAccountMissing", "WebhookFailed"})
"""Refusals that pass by themselves."""
_MADE = Waits("its pod waits for a node", Why.NODE)
"""What is told of one that was just made."""

_log = structlog.get_logger()


class NotAllowed(Exception):
    """Who asks is not the run; the same words whether or not there is one."""


@dataclass(frozen=True)
class Asking:
    """Which sandbox is asked for, and who says to ask."""

    namespace: str
    run: str
    token: str | None
    key: str = ""


class Broker:
    """Makes, finds and ends sandboxes."""

    def __init__(
        self, clusters: Mapping[str, Cluster], tokens: Tokens, settings: BrokerSettings, metrics: BrokerMetrics
    ) -> None:
        """``clusters``: by provider, of which ``pod`` is one."""
        self._clusters, self._tokens, self._settings, self._metrics = clusters, tokens, settings, metrics
        self._bodies = Bodies(tokens, settings)
        self._cluster = clusters["pod"]
        self._warm = WarmPods(self._cluster, metrics, settings.start_deadline_seconds)
        agent = clusters.get("agent-sandbox")
        self._pools = WarmPools(agent) if isinstance(agent, AgentSandboxes) else None
        self._counting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By run: who counts its sandboxes makes one before another counts."""

    async def create(self, asking: Asking, wanted: Wanted, wait_s: float) -> Ready | Pending | Lost:
        """The sandbox, as soon as it is ready; after ``wait_s`` seconds why it is not.

        Raises:
            NotAllowed: who asks is not the run.
            NoSandboxes: the run has none.
            errors.ApiError: the API server does not answer.
        """
        until = time.monotonic() + min(wait_s, LONGEST_WAIT_S)
        run = await self._authentic(asking)
        if run.uid != wanted.run_uid:
            raise NotAllowed(_NOBODY)
        sandboxes, cluster = sandboxes_of(run, self._clusters), self._of(run)
        if (refusal := _refusal(asking.key, wanted)) is not None:
            return self._failed(run, refusal)
        allowed = within(wanted, sandboxes)
        while True:
            orchestrator = await self._cluster.orchestrator(run)
            if orchestrator is None:
                return self._failed(run, f"run {run.key.name} has no orchestrator that could use it")
            pod = await self._sandbox(run, asking.key) or await self._claimed(run, orchestrator, asking.key, allowed)
            if pod is None:
                answer: Up | Waits | Lost = await self._make(
                    run, orchestrator, asking.key, allowed, most_pods(sandboxes)
                )
            else:
                answer = await self._judge(pod, run, orchestrator, asking.key)
            if isinstance(answer, Lost):
                return answer
            if isinstance(answer, Up):
                assert pod is not None  # noqa: S101 - one that was just made is not up
                self._metrics.ready(run.key, pod.record)
                await self._keep_warm(run, orchestrator, allowed, sandboxes)
                return self._ready(pod, run, orchestrator, answer)
            left = until - time.monotonic()
            if left <= 0:
                return Pending(reason=answer.reason, why=answer.why)
            if answer is _MADE:
                # A claim may have its pod at once.
                continue
            with self._metrics.waiting(run.key, answer.why):
                await _pause(cluster, pod, left)

    async def find(self, asking: Asking) -> Ready | Pending | Lost:
        """A sandbox as it is now, or what became of it. Raises as ``create``."""
        run = await self._authentic(asking)
        sandboxes_of(run, self._clusters)
        orchestrator = await self._cluster.orchestrator(run)
        name = labels.pod_name(asking.run, run.uid, asking.key)
        pod = await self._sandbox(run, asking.key)
        if pod is None or not pod.made or orchestrator is None or not _is_of(pod, run, asking.key):
            # Who asks has had it, and has not ended it.
            self._metrics.failed(run.key, "evicted", name)
            return Lost("evicted", "its pod is gone: it was deleted, or its node was lost")
        answer = await self._judge(pod, run, orchestrator, asking.key)
        if isinstance(answer, Up):
            return self._ready(pod, run, orchestrator, answer)
        return Pending(reason=answer.reason, why=answer.why) if isinstance(answer, Waits) else answer

    async def destroy(self, asking: Asking) -> None:
        """End a sandbox; nothing happens where there is none. Raises as ``create``, but for ``NoSandboxes``."""
        run = await self._authentic(asking)
        for pod in await self._of_key(run, asking.key):
            if not _is_of(pod, run, asking.key) or pod.record.meta.deleted_at is not None:
                continue
            state = state_of(pod.record, now=time.time(), start_deadline_s=self._settings.start_deadline_seconds)
            if await self._end(run, pod) and isinstance(state, Lost):
                self._metrics.failed(run.key, state.loss, pod.record.meta.name)

    async def keys(self, asking: Asking) -> list[str]:
        """Keys of the run's sandboxes. Raises as ``create``."""
        run = await self._authentic(asking)
        return [head.key for head in await self._of(run).living(asking.namespace, run.uid) if head.key]

    async def destroy_of(self, asking: Asking, owner: str) -> None:
        """End all sandboxes that one process asked for. Raises as ``create``."""
        run = await self._authentic(asking)
        for head in await self._of(run).living(asking.namespace, run.uid):
            if head.key.startswith(f"{owner}-"):
                await self._of(run).delete(asking.namespace, head.name, head.uid)

    async def _of_key(self, run: RunRecord, key: str) -> list[SandboxPod]:
        """The sandbox of a key, and behind it what other calls made or claimed for it at the same time."""
        namespace = run.key.namespace
        made = await self._of(run).sandbox(namespace, labels.pod_name(run.key.name, run.uid, key))
        claimed = await self._cluster.claimed(namespace, run.uid, key) if self._keeper(run) is self._warm else []
        return sorted(([] if made is None else [made]) + claimed, key=_order)

    async def _sandbox(self, run: RunRecord, key: str) -> SandboxPod | None:
        return next(iter(await self._of_key(run, key)), None)

    async def _claimed(self, run: RunRecord, orchestrator: PodRecord, key: str, wanted: Wanted) -> SandboxPod | None:
        """A warm pod that is the sandbox of this key from now on; None where there is none for it."""
        if self._keeper(run) is not self._warm:
            return None
        async with self._lock(run):
            claimed = await self._warm.claim(run, orchestrator, key, wanted)
        return await self._sandbox(run, key) if claimed else None

    async def _keep_warm(self, run: RunRecord, orchestrator: PodRecord, wanted: Wanted, sandboxes: Sandboxes) -> None:
        """See that the next sandbox of this kind is ready before it is asked for, if the run wants that."""
        keeper = self._keeper(run)
        if keeper is None:
            return
        make = self._bodies.pooled if keeper is self._pools else self._bodies.warm
        async with self._lock(run):
            await keeper.keep(run, sandboxes, wanted, lambda: make(run, orchestrator, wanted))

    async def _give_way(self, run: RunRecord) -> None:
        """Of what is kept ready, for a sandbox that somebody waits for."""
        if (keeper := self._keeper(run)) is not None:
            await keeper.give_way(run)

    def _keeper(self, run: RunRecord) -> WarmPods | WarmPools | None:
        """Who keeps sandboxes of this run ready; None where it wants none."""
        if not keeps_warm(run):
            return None
        return self._warm if self._of(run) is self._cluster else self._pools

    def _lock(self, run: RunRecord) -> asyncio.Lock:
        return self._counting.setdefault(run.uid, asyncio.Lock())

    async def _end(self, run: RunRecord, pod: SandboxPod) -> bool:
        meta = pod.record.meta
        return await self._of(run).delete(meta.namespace, meta.name, meta.uid)

    def _of(self, run: RunRecord) -> Cluster:
        """Where the run's sandboxes are."""
        return self._clusters.get(provider_of(run), self._cluster)

    async def _authentic(self, asking: Asking) -> RunRecord:
        if not is_namespace(asking.namespace) or not is_namespace(asking.run):
            raise NotAllowed(_NOBODY)
        try:
            run = await self._cluster.run(asking.namespace, asking.run)
        except errors.Forbidden:
            # Not a namespace that this installation looks after.
            run = None
        if run is None or not is_same(asking.token, sandboxes_key(self._tokens.token(run.uid))):
            raise NotAllowed(_NOBODY)
        return run

    async def _judge(self, pod: SandboxPod, run: RunRecord, orchestrator: PodRecord, key: str) -> Up | Waits | Lost:
        if not _is_of(pod, run, key):
            return Lost("refused", f"another pod has its name: {pod.record.meta.name}")
        state = state_of(pod.record, now=time.time(), start_deadline_s=self._settings.start_deadline_seconds)
        if pod.record.meta.deleted_at is not None:
            if isinstance(state, Lost) and state.loss == "evicted":
                return state
            return Waits("its forerunner still ends", Why.FORERUNNER)
        if pod.orchestrator_uid != orchestrator.meta.uid:
            await self._end(run, pod)
            return Waits("its forerunner, of an earlier orchestrator, still ends", Why.FORERUNNER)
        if pod.unclaimed is not None and not await self._bind(run, pod, pod.unclaimed):
            return Waits("its pod is claimed", Why.START)
        if pod.record.unscheduled and isinstance(state, Waits):
            await self._give_way(run)
        return state

    async def _bind(self, run: RunRecord, pod: SandboxPod, given: Meta) -> bool:
        """Have the pod that a claim was given say whose it is, and begin its time; False where it is to be another."""
        now = time.time()
        if now - given.created_at > profile.POOLED_S:
            # What is left of its own time would be less than was asked for.
            await self._end(run, pod)
            return False
        change = profile.claim(given, pod.key, pod.ttl_s, now=now, unchanged=False)
        if not await self._cluster.claim(given, change):
            return False
        if given.name != pod.record.meta.name:
            # One that was made for the claim has its name.
            self._metrics.claimed(run.key)
        _log.info("sandbox claimed", namespace=run.key.namespace, run=run.key.name, key=pod.key, pod=given.name)
        return True

    async def _make(self, run: RunRecord, orchestrator: PodRecord, key: str, wanted: Wanted, most: int) -> Waits | Lost:
        async with self._lock(run):
            present = len(await self._of(run).living(run.key.namespace, run.uid))
            if present >= most:
                await self._give_way(run)
                words = f"the run has {present} sandboxes, accepted are {most} at the same time"
                return Waits(words, Why.LIMIT)
            try:
                await self._of(run).create(self._bodies.sandbox(run, orchestrator, key, wanted))
            except errors.AlreadyExists:
                return Waits("its pod was made by another call", Why.START)
            except (errors.Refused, errors.Forbidden, errors.Invalid, errors.BadRequest) as error:
                told = refusals.read(str(error))
                if wanted.volumes and image_volumes.is_of_volumes(error):
                    return self._failed(run, f"volumes: {image_volumes.OLD}: {told.words[:300]}")
                words = f"the API server does not take its pod: {told.words[:500]}"
                if told.reason in _LATER:
                    await self._give_way(run)
                    return Waits(words, Why.QUOTA if told.reason == "QuotaExceeded" else Why.ADMISSION)
                return self._failed(run, words)
        self._metrics.made(run.key, labels.pod_name(run.key.name, run.uid, key))
        _log.info("sandbox made", namespace=run.key.namespace, run=run.key.name, key=key)
        return _MADE

    def _failed(self, run: RunRecord, why: str) -> Lost:
        self._metrics.failed(run.key, "refused")
        return Lost("refused", why)

    def _ready(self, pod: SandboxPod, run: RunRecord, orchestrator: PodRecord, up: Up) -> Ready | Lost:
        if pod.gateway and not orchestrator.ip:
            return Lost("refused", "the orchestrator's pod has no address that the gateway could be reached at")
        host = f"[{up.ip}]" if ":" in up.ip else up.ip
        return Ready(
            address=f"http://{host}:{profile.DAEMON_PORT}",
            token=self._bodies.token(run, pod.token_of or pod.record.meta.name, pod.nonce),
            gateway=f"http://{orchestrator_address(orchestrator.ip)}" if pod.gateway else None,
        )


async def _pause(cluster: Cluster, pod: SandboxPod | None, left_s: float) -> None:
    """Until something may have changed: the pod, or, where there is none, room for it."""
    if pod is None:
        await asyncio.sleep(min(_PAUSE_S, left_s))
    else:
        await cluster.changed(pod, min(left_s, 10 * _PAUSE_S))


def _refusal(key: str, wanted: Wanted) -> str | None:
    """Why nothing is made of a request; None if something may be."""
    if re.fullmatch(KEY_FORM, key) is None:
        return f"key: found {key!r:.80}, accepted are up to 63 letters, digits, '-_.'"
    return image_volumes.refusal(wanted.volumes)


def _order(pod: SandboxPod) -> tuple[bool, float]:
    """Of those of one key: which it is."""
    return pod.record.meta.deleted_at is not None, pod.claimed_at or pod.record.meta.created_at


def _is_of(pod: SandboxPod, run: RunRecord, key: str) -> bool:
    return pod.key == key and pod.record.meta.run_uid == run.uid
