"""A second floor: the bare client, and yet a run's life in the operator's order.

As ``bare``, but engines and orchestrator follow when prepare has succeeded, and gates are lifted when the gang is
there: what any operator must do that admits gangs. It watches pods for that with the operator's own stream. It writes
no status, checks nothing, and would not survive an error.

    python -m benchmarks.operator_scale.staged KUBECONFIG BODIES RUNS TRAINERS
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.operator_scale.bare import Write
from benchmarks.operator_scale.operating import WORKERS
from echorl_operator import names
from echorl_operator.kube.connection import STRATEGIC_MERGE_PATCH, Call, Connection
from echorl_operator.kube.credentials import from_kubeconfig
from echorl_operator.kube.lists import Stream
from echorl_operator.kube.resources import POD
from echorl_operator.kube.store import Store
from echorl_operator.metrics import Metrics
from echorl_operator.names import PodRole
from echorl_operator.observed import decode
from echorl_operator.observed.records import PodPhase, PodRecord
from echorl_operator.observed.runs import RunKey

_BEFORE_PREPARE_ENDS = -2
"""All writes of ``bare.recorded`` but those of engines and orchestrator."""


@dataclass
class _Run:
    uid: str = ""
    stage: int = 0
    prepared: bool = False
    gang: dict[str, PodRecord] = field(default_factory=dict)


class Client:
    """Takes runs through three stages: children and prepare; engines and orchestrator; gates."""

    def __init__(self, connection: Connection, writes: list[Write], trainers: int) -> None:
        self._connection, self._writes, self._trainers = connection, writes, trainers
        self._runs: dict[RunKey, _Run] = {}
        self._due: asyncio.PriorityQueue[tuple[int, int, RunKey]] = asyncio.PriorityQueue()
        self._order = 0
        self.applied_at = 0.0
        self.left = 0

    def add(self, key: RunKey, uid: str) -> None:
        """A run is there."""
        self._runs.setdefault(key, _Run()).uid = uid
        self._next(key, 1)

    def see(self, body: bytes) -> PodRecord:
        """A pod has changed."""
        pod = decode.pod(body)
        run = self._runs.setdefault(RunKey(pod.meta.namespace, pod.meta.run), _Run())
        if pod.role is PodRole.PREPARE and pod.phase is PodPhase.SUCCEEDED:
            run.prepared = True
        elif pod.role is PodRole.TRAINER:
            run.gang[pod.meta.name] = pod
        self._look(RunKey(pod.meta.namespace, pod.meta.run), run)
        return pod

    async def work(self) -> None:
        """One of the workers, until cancelled."""
        while True:
            stage, _, key = await self._due.get()
            run = self._runs[key]
            if stage == 3:
                for pod in run.gang.values():
                    await self._connection.request(_lift(pod))
                self.left -= 1
                continue
            part = slice(None, _BEFORE_PREPARE_ENDS) if stage == 1 else slice(_BEFORE_PREPARE_ENDS, None)
            for write in self._writes[part]:
                await self._connection.request(write.call(key, run.uid))
            run.stage = stage
            self.applied_at = time.monotonic()
            self._look(key, run)

    def _look(self, key: RunKey, run: _Run) -> None:
        if run.stage == 1 and run.prepared:
            run.stage = 0
            self._next(key, 2)
        elif run.stage == 2 and len(run.gang) == self._trainers:
            run.stage = 0
            self._next(key, 3)

    def _next(self, key: RunKey, stage: int) -> None:
        self._order += 1
        # Gates come last, as in the operator where many runs start at once.
        self._due.put_nowait((stage, self._order, key))


def _lift(pod: PodRecord) -> Call:
    body: dict[str, Any] = {
        "metadata": {"uid": pod.meta.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}]},
    }
    path = POD.path(pod.meta.namespace, pod.meta.name)
    return Call("patch", path, POD.plural, {"fieldManager": names.FIELD_MANAGER}, body, STRATEGIC_MERGE_PATCH)


async def _main(kubeconfig: Path, writes: list[Write], runs: int, trainers: int) -> None:
    reader, metrics = asyncio.StreamReader(), Metrics()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with Connection(from_kubeconfig(kubeconfig), metrics) as connection:
        client = Client(connection, writes, trainers)
        client.left = runs
        stream = Stream(connection, POD, None, store=Store(lambda _: None), project=client.see, metrics=Metrics())
        tasks = [asyncio.create_task(stream.run())] + [asyncio.create_task(client.work()) for _ in range(WORKERS)]
        for _ in range(runs):
            namespace, name, uid = (await reader.readline()).decode().split()
            client.add(RunKey(namespace, name), uid)
        while client.left:
            await asyncio.wait(tasks, timeout=0.2, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    count: dict[str, float] = {"apply": 0.0, "create": 0.0, "patch": 0.0}
    for sample in (one for family in metrics.api_requests.collect() for one in family.samples):
        if sample.name.endswith("_total") and sample.labels["verb"] in count:
            count[sample.labels["verb"]] += sample.value
    said = {"ended": client.applied_at, "cpu_s": time.process_time(), "writes": count["apply"] + count["create"]}
    print(json.dumps(said))


if __name__ == "__main__":
    recording = [Write(**one) for one in json.loads(Path(sys.argv[2]).read_text())]
    asyncio.run(_main(Path(sys.argv[1]), recording, int(sys.argv[3]), int(sys.argv[4])))
