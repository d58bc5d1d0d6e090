"""Sandboxes that nobody has any more use for. Every replica looks, and deletes by uid: they cannot disagree."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Never

import structlog

from echorl_broker.losses import Lost, stands, state_of
from echorl_broker.metrics import BrokerMetrics, State
from echorl_broker.pods import Cluster, SandboxPod
from echorl_broker.runs import NoSandboxes, why_closed
from echorl_operator.kube import errors
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunKey, RunRecord

EVERY_S = 30.0
_TOLD_S = 120.0
"""How long an ended pod stays for its orchestrator to be told why."""
_SLACK_S = 60.0

_log = structlog.get_logger()


def why_reaped(
    pod: SandboxPod, run: RunRecord | None, orchestrator: PodRecord | None, *, now: float, start_deadline_s: float
) -> str | None:
    """Why a sandbox is to go; None if it stays.

    Args:
        pod: its pod.
        run: of the name that it says.
        orchestrator: that run's, read after the pod was.
        now: seconds since the epoch.
        start_deadline_s: that it may have taken before its time began.
    """
    meta = pod.record.meta
    if meta.deleted_at is not None:
        return None
    if run is None or run.uid != meta.run_uid:
        return "its run is gone"
    if (closed := why_closed(run)) is not None:
        return closed
    if orchestrator is None or orchestrator.meta.uid != pod.orchestrator_uid:
        return "the orchestrator that it was made for is gone"
    return _why_late(pod, now, start_deadline_s)


def _why_late(pod: SandboxPod, now: float, start_deadline_s: float) -> str | None:
    if pod.record.ended and now - _ended_at(pod.record) > _TOLD_S:
        return "it has ended"
    late = now - pod.record.meta.created_at > pod.ttl_s + start_deadline_s + _SLACK_S
    return "it outlived its time" if late else None


def _ended_at(pod: PodRecord) -> float:
    return max((container.since or 0.0 for container in pod.containers), default=0.0) or pod.meta.created_at


class Reaper:
    """Looks again and again, until cancelled."""

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        namespaces: Sequence[str] | None,
        start_deadline_s: float,
        metrics: BrokerMetrics,
    ) -> None:
        """``clusters``: by provider; ``namespaces``: where to look; None: everywhere."""
        self._clusters, self._namespaces, self._metrics = clusters, namespaces, metrics
        self._start_deadline_s = start_deadline_s

    async def run(self, every_s: float = EVERY_S) -> Never:
        """Work until cancelled; what the API server does not answer is tried at the next turn."""
        while True:
            looks = itertools.product(self._namespaces or (None,), self._clusters.items())
            for namespace, (provider, cluster) in looks:
                try:
                    pods = await cluster.sandboxes(namespace)
                    self._metrics.looked((namespace, provider), self._counted(pods))
                    own = [pod for pod in pods if pod.record.meta.owner_uid in {"", pod.record.meta.run_uid}]
                    await self._reap(cluster, own)
                    await self._reap(cluster, await cluster.pools(namespace), are_sandboxes=False)
                except (errors.ApiError, NoSandboxes) as error:
                    _log.warning("sandboxes could not be looked through", namespace=namespace, error=str(error))
            # Replicas that were started together do not go on together.
            await asyncio.sleep(every_s * (0.9 + random.random() / 5))

    def _counted(self, pods: Sequence[SandboxPod]) -> Counter[tuple[RunKey, State]]:
        now, deadline_s = time.time(), self._start_deadline_s
        states = ((pod, stands(pod.record, now=now, start_deadline_s=deadline_s)) for pod in pods)
        return Counter(
            (_run_of(pod), State.WARM if pod.warm and state is State.READY else state) for pod, state in states
        )

    async def _reap(self, cluster: Cluster, pods: Sequence[SandboxPod], *, are_sandboxes: bool = True) -> None:
        by_run: dict[RunKey, list[SandboxPod]] = {}
        for pod in pods:
            by_run.setdefault(_run_of(pod), []).append(pod)
        for key, of_run in by_run.items():
            run = await cluster.run(key.namespace, key.name) if key.name else None
            orchestrator = None if run is None else await cluster.orchestrator(run)
            for pod in of_run:
                now, deadline_s, meta = time.time(), self._start_deadline_s, pod.record.meta
                why = why_reaped(pod, run, orchestrator, now=now, start_deadline_s=deadline_s)
                if why is None or not await cluster.delete(key.namespace, meta.name, meta.uid):
                    continue
                _log.info("sandbox reaped", namespace=key.namespace, pod=meta.name, why=why)
                state = state_of(pod.record, now=now, start_deadline_s=deadline_s)
                if are_sandboxes and isinstance(state, Lost):
                    self._metrics.failed(key, state.loss, meta.name)


def _run_of(pod: SandboxPod) -> RunKey:
    return RunKey(pod.record.meta.namespace, pod.record.meta.run)
