"""The floor: a client that applies what the operator would apply for each run, and does nothing else.

It watches nothing, decides nothing, reads no reply; bodies are rendered before by the operator's own build package,
for one run, and get each run's name and uid by replacing bytes. The HTTP client and its settings are the operator's,
and there are as many workers. Runs come on standard input as ``namespace name uid``; at the end it prints one line of
JSON.

    python -m benchmarks.operator_scale.bare KUBECONFIG BODIES RUNS
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.operator_scale.operating import WORKERS
from benchmarks.operator_scale.submitting import Shape
from echorl_manifest import load
from echorl_operator import names
from echorl_operator.children import (
    common,
    inference_deployment,
    orchestrator_pod,
    prepare_pod,
    render,
    to_revision,
    token_secret,
    trainer_set,
)
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.credentials import from_kubeconfig
from echorl_operator.kube.resources import of_body
from echorl_operator.metrics import Metrics
from echorl_operator.observed.runs import RunKey
from echorl_operator.settings import Settings

EXAMPLE = RunKey("example-00", "one-0000")
"""As long as real names, so that bodies have the real length."""
_UID = "00000000-0000-4000-8000-000000000000"
_APPLY = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
_CREATE = {"fieldManager": names.FIELD_MANAGER}
CREATED = frozenset({"ControllerRevision", "Secret", "Pod", "PersistentVolumeClaim"})


@dataclass(frozen=True)
class Write:
    """One request for the example run."""

    verb: str
    path: str
    resource: str
    body: str

    def call(self, key: RunKey, uid: str) -> Call:
        """The same for another run."""
        changes = ((_UID, uid), (EXAMPLE.namespace, key.namespace), (EXAMPLE.name, key.name))
        path, body = self.path, self.body
        for old, new in changes:
            path, body = path.replace(old, new), body.replace(old, new)
        query = _CREATE if self.verb == "create" else _APPLY
        return Call(self.verb, path, self.resource, query, body.encode())


def recorded(shape: Shape) -> list[Write]:
    """All children of an attempt, in the operator's order."""
    run = load(shape.manifest(EXAMPLE))
    rendering = render(
        run, uid=_UID, namespace=EXAMPLE.namespace, generation=1, settings=Settings(operator_version="0.1.0")
    )
    bodies = [
        to_revision(rendering, run, 1, 1),
        *common(rendering),
        trainer_set(rendering, 1, shape.trainers),
        token_secret(rendering, "0" * 64),
        prepare_pod(rendering, 1, run.spec.resume),
        inference_deployment(rendering, shape.engines),
        orchestrator_pod(rendering, 1),
    ]
    return [_write(body) for body in bodies]


def _write(body: dict[str, Any]) -> Write:
    resource, creates = of_body(body), body["kind"] in CREATED
    path = resource.path(EXAMPLE.namespace, None if creates else body["metadata"]["name"])
    return Write("create" if creates else "apply", path, resource.plural, json.dumps(body))


async def _main(kubeconfig: Path, writes: list[Write], runs: int) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    left, took = iter(range(runs)), asyncio.Lock()
    metrics = Metrics()
    async with Connection(from_kubeconfig(kubeconfig), metrics) as connection:

        async def work() -> None:
            for _ in left:
                async with took:
                    namespace, name, uid = (await reader.readline()).decode().split()
                for write in writes:
                    await connection.request(write.call(RunKey(namespace, name), uid))

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work())
    ended, cpu_s = time.monotonic(), time.process_time()
    samples = [one for family in metrics.api_requests.collect() for one in family.samples]
    count = sum(one.value for one in samples if one.name.endswith("_total"))
    print(json.dumps({"ended": ended, "cpu_s": cpu_s, "writes": count}))


if __name__ == "__main__":
    recording = [Write(**one) for one in json.loads(Path(sys.argv[2]).read_text())]
    asyncio.run(_main(Path(sys.argv[1]), recording, int(sys.argv[3])))
