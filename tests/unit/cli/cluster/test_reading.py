"""What is asked of the API server about a run."""

from pathlib import Path

import msgspec
import yaml

from echorl_cli.cluster.access import reached
from echorl_cli.cluster.kubeconfig import place
from echorl_cli.cluster.reading import observe
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.operator.observed_worlds import run as record

RUNS = "/apis/echorl.dev/v1alpha1/namespaces/lab/echorlruns"
PODS = "/api/v1/namespaces/lab/pods"
UID = "uid-2"


async def test_events_of_others_that_had_the_name_before_are_left_out(tmp_path: Path) -> None:
    async with WireApi() as api:
        await api.set(RUNS, "one", metadata={"uid": UID}, spec=record().spec, status={"phase": "Running", "attempt": 1})
        labels = {"echorl.dev/run": "one", "echorl.dev/run-uid": UID, "echorl.dev/role": "trainer"}
        metadata = {"uid": "uid-pod", "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
        await api.set(PODS, "one-trainer-0", metadata=metadata, spec={"containers": []}, status={"phase": "Pending"})
        cluster = {"name": "a", "cluster": {"server": api.url}}
        context = {"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "lab"}}
        content = {"clusters": [cluster], "contexts": [context], "users": [{"name": "a", "user": {}}]}
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump({**content, "current-context": "a"}))
        async with reached(place(kubeconfig, None, None)) as found:
            await observe(found, msgspec.json.decode(await found.run("one")))
        asked = [query["fieldSelector"] for _, path, query, *_ in api.requests if path.endswith("/events")]
    assert sorted(asked) == [
        f"involvedObject.kind=EchoRLRun,involvedObject.name=one,involvedObject.uid={UID}",
        "involvedObject.kind=Pod,involvedObject.name=one-trainer-0,involvedObject.uid=uid-pod",
    ]
