"""Engines that follow what is measured: real API server, Deployment controller and operator; a played orchestrator."""

from datetime import UTC, datetime

import pytest

from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.scripted_cluster import scripted

pytestmark = pytest.mark.timeout(300)


class Measured:
    """What the played orchestrator says it has measured, from one look to the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at, self._step = 1_800_000_000, 0
        self._trainer, self._engines = {"useful": 0.0, "waiting": 0.0}, {"useful": 0.0, "waiting": 0.0}

    async def after(self, seconds: int, steps: int, *, engines: int, waiting: float = 0.0, idle: float = 0.0) -> None:
        """Until the operator has seen it."""
        self._at, self._step = self._at + seconds, self._step + steps
        for states, gpus, share in ((self._trainer, 2, waiting), (self._engines, engines, idle)):
            states["useful"] += gpus * seconds * (1 - share)
            states["waiting"] += gpus * seconds * share
        self._world.cluster.orchestrators["one"].say(
            step=self._step,
            engines=engines,
            goodput={
                "measured_at": datetime.fromtimestamp(self._at, UTC).isoformat(),
                "gpu_seconds": {"trainer": dict(self._trainer), "inference": dict(self._engines)},
            },
        )
        whole = round(self._engines["useful"])

        def is_seen() -> bool:
            return bool(self._world.status().get("goodput", {}).get("inference/useful") == whole)

        await self._world.until(f"{whole} s of engines are seen", is_seen)

    async def window(self, *, engines: int, waiting: float = 0.0, idle: float = 0.0) -> None:
        """As long as any decision takes."""
        for seconds, steps in ((60, 1), (60, 1), (660, 11)):
            await self.after(seconds, steps, engines=engines, waiting=waiting, idle=idle)


async def test_engines_follow_until_somebody_scales_them(api: Api, connection: Connection, namespace: str) -> None:
    install_crd(api)
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/one-inference"
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace):
        world = World(api, namespace, cluster, None)
        world.create(inference={"replicas": 1, "gpusPerReplica": 0, "autoscale": {"min": 1, "max": 4}})
        await world.phase("Running")

        async def engines(number: int) -> None:
            def there() -> bool:
                wanted = api.get(deployment)["spec"]["replicas"]
                return bool(wanted == number == len(world.pods("inference")))

            await world.until(f"{number} engines", there)
            desired = world.status()["roles"]["inference"]["desired"]
            assert (desired, world.run()["spec"]["inference"]["replicas"]) == (number, asked)

        asked, measured = 1, Measured(world)
        await measured.window(engines=1, waiting=0.66)
        await engines(3)
        says = "3 engines in place of 1: with 1 the trainer waited 66% and engines had no requests 0% of 11 min"
        assert world.status()["inference"]["autoscale"] == says
        await measured.window(engines=3, idle=0.6)
        await engines(2)
        fewer = "2 engines in place of 3: with 3 the trainer waited 0% and engines had no requests 60% of 11 min"

        def told() -> set[str]:
            events = api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
            return {event["message"] for event in events if event["reason"] == "Autoscaled"}

        await world.until("both changes are told", lambda: told() == {says, fewer})
        with pytest.raises(ApiError) as refused:
            api.patch(f"{world.runs}/one/scale", {"spec": {"replicas": 5}})
        assert "spec.inference.autoscale.max" in str(refused.value)
        asked = 4
        api.patch(f"{world.runs}/one/scale", {"spec": {"replicas": asked}})
        await engines(4)
        await measured.window(engines=4, idle=0.9)
        await engines(4)
        assert world.status()["inference"]["autoscale"].startswith("off: somebody has set inference.replicas to 4;")
        world.edit({"inference": {"autoscale": {"min": 2, "max": 4}}})
        await world.until("it goes on", lambda: not world.status()["inference"]["autoscale"].startswith("off"))
        await measured.window(engines=4, idle=0.9)
        await engines(3)
