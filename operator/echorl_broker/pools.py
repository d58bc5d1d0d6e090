"""Pools of agent-sandbox that a run keeps: one for each shape of sandbox that several of its episodes have at a time.

Nothing is remembered: which pools there are, and how large they are, stands on themselves. So every replica keeps the
same ones. Their controller makes what is missing, and gives one away for each claim.
"""

from collections.abc import Callable

import structlog

from echorl_broker.agent_sandbox import AgentSandboxes
from echorl_broker.claims import Pool, sizes
from echorl_broker.profile import Object, shape_of
from echorl_broker.runs import most_pods, most_warm
from echorl_core.wire.sandboxes import Wanted
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_operator.kube import errors
from echorl_operator.observed.runs import RunRecord

_ENOUGH = 2
"""Sandboxes of one shape at the same time: those of a group's siblings."""

_log = structlog.get_logger()


class WarmPools:
    """Of all runs of one API server."""

    def __init__(self, cluster: AgentSandboxes) -> None:
        self._cluster = cluster

    async def keep(self, run: RunRecord, sandboxes: Sandboxes, wanted: Wanted, make: Callable[[], Object]) -> None:
        """One more kept ready by what somebody just got, if there are fewer than wanted and others have the same.

        Graders, which reach no gateway, share nothing with others: they are not kept ready. Who asks has a sandbox,
        whatever becomes of this: what the API server does not take is told to the log alone.

        Args:
            run: whose.
            sandboxes: what it says of them.
            wanted: within the run's limits.
            make: what the pods of a pool are made by.
        """
        try:
            await self._keep(run, sandboxes, wanted, make)
        except errors.ApiError as error:
            _log.warning("no sandbox is kept ready", run=run.key.name, error=str(error)[:500])

    async def give_way(self, run: RunRecord) -> None:
        """Keep one less ready in the oldest pool that keeps any, for a sandbox that somebody waits for."""
        for pool in await self._cluster.pools_of(run.key.namespace, run.uid):
            if pool.replicas:
                await self._cluster.scale(pool, pool.replicas - 1)
                return

    async def _keep(self, run: RunRecord, sandboxes: Sandboxes, wanted: Wanted, make: Callable[[], Object]) -> None:
        of_run = (run.key.namespace, run.uid)
        pools = {pool.name: pool for pool in await self._cluster.pools_of(*of_run)}
        pod = make()
        name: str = pod["metadata"]["name"]
        shared = wanted.gateway and (name in pools or await self._cluster.alike(*of_run, shape_of(wanted)) >= _ENOUGH)
        room = most_pods(sandboxes) - len(await self._cluster.living(*of_run))
        now = {pool.name: pool.replicas for pool in pools.values()}
        then = sizes(now, name if shared else None, most=most_warm(run, sandboxes), room=room)
        for other, replicas in then.items():
            if other not in pools:
                await self._cluster.create_pool(pod, replicas)
            elif replicas != now[other]:
                await self._cluster.scale(pools[other], replicas)
        await self._end_unused(run, [pool for other, pool in pools.items() if other != name and not then[other]])

    async def _end_unused(self, run: RunRecord, empty: list[Pool]) -> None:
        """End pools that keep nothing ready and that no claim is on."""
        if not empty:
            return
        claimed = {claim.held.token_of for claim in await self._cluster.claims(run.key.namespace, run.uid)}
        for pool in empty:
            if pool.name not in claimed:
                meta = pool.held.record.meta
                await self._cluster.delete(meta.namespace, meta.name, meta.uid)
