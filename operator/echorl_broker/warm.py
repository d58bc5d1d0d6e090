"""Pods of a run that are ready before they are asked for: claimed once, then replaced. Provider ``pod`` alone.

They are of the images that came for sandboxes before, and of what else these were made by. Nothing is remembered: which
pods are warm, and whose one was, stands on the pods. So every replica keeps the same ones.
"""

import time
from collections.abc import Callable, Sequence

import structlog

from echorl_broker import profile
from echorl_broker.losses import Lost, Up, Waits, state_of
from echorl_broker.metrics import BrokerMetrics
from echorl_broker.pods import Cluster, SandboxPod
from echorl_broker.runs import most_pods, most_warm
from echorl_core.wire.sandboxes import Wanted
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.kube import errors
from echorl_operator.observed.records import PodRecord
from echorl_operator.observed.runs import RunRecord

_log = structlog.get_logger()

_LOOKS = 4
"""At pods that could not be claimed as they were read: a kubelet or scheduler may only have written their status."""


class WarmPods:
    """Of all runs of one API server."""

    def __init__(self, cluster: Cluster, metrics: BrokerMetrics, start_deadline_s: float) -> None:
        self._cluster, self._metrics, self._start_deadline_s = cluster, metrics, start_deadline_s

    async def claim(self, run: RunRecord, orchestrator: PodRecord, key: str, wanted: Wanted) -> bool:
        """Make a ready one that was made by the same the sandbox ``key``; False where there is none."""
        now, shape = time.time(), profile.shape_of(wanted)
        for _ in range(_LOOKS):
            was_refused = False
            for pod in await self._cluster.warm(run.key.namespace, run.uid):
                fits = pod.warm == shape and pod.orchestrator_uid == orchestrator.meta.uid
                if not fits or _is_old(pod, now) or not isinstance(self._state(pod, now), Up):
                    continue
                meta = pod.record.meta
                if await self._cluster.claim(meta, profile.claim(meta, key, wanted.ttl_s, now=now)):
                    self._metrics.claimed(run.key)
                    _log.info("sandbox claimed", namespace=run.key.namespace, run=run.key.name, key=key)
                    return True
                was_refused = True
            if not was_refused:
                break
        return False

    async def keep(
        self, run: RunRecord, sandboxes: Sandboxes, wanted: Wanted, make: Callable[[], profile.Object]
    ) -> None:
        """One more by what somebody just got, if there are fewer than wanted.

        Who asks has a sandbox, whatever becomes of this: what the API server does not take is told to the log alone.

        Args:
            run: whose.
            sandboxes: what it says of them.
            wanted: within the run's limits.
            make: the body of a pod.
        """
        most, place = most_warm(run, sandboxes), run.key.namespace
        try:
            pods = await self._useful(run, await self._cluster.warm(place, run.uid))
            while len(pods) > most:
                await self._end(pods.pop(0))
            if len(pods) >= most:
                # Images that were asked for last are those that are asked for next.
                others = [pod for pod in pods if pod.warm != profile.shape_of(wanted)]
                if not others or not await self._end(others[0]):
                    return
            if len(await self._cluster.living(place, run.uid)) < most_pods(sandboxes):
                body = make()
                await self._cluster.create(body)
                self._metrics.made(run.key, body["metadata"]["name"])
        except errors.ApiError as error:
            _log.warning("no sandbox is kept ready", run=run.key.name, error=str(error)[:500])

    async def give_way(self, run: RunRecord) -> None:
        """End the oldest, if there is one, for a sandbox that somebody waits for."""
        for pod in (await self._cluster.warm(run.key.namespace, run.uid))[:1]:
            await self._end(pod)

    async def _useful(self, run: RunRecord, pods: Sequence[SandboxPod]) -> list[SandboxPod]:
        now, well = time.time(), []
        for pod in pods:
            state = self._state(pod, now)
            if not isinstance(state, Lost) and not _is_old(pod, now):
                well.append(pod)
            elif await self._end(pod) and isinstance(state, Lost):
                self._metrics.failed(run.key, state.loss, pod.record.meta.name)
        return well

    def _state(self, pod: SandboxPod, now: float) -> Up | Waits | Lost:
        return state_of(pod.record, now=now, start_deadline_s=self._start_deadline_s)

    async def _end(self, pod: SandboxPod) -> bool:
        meta = pod.record.meta
        return await self._cluster.delete(meta.namespace, meta.name, meta.uid)


def _is_old(pod: SandboxPod, now: float) -> bool:
    """Whether it would end within the time of who claims it."""
    return now - pod.record.meta.created_at > pod.ttl_s - 1
