from echorl_operator.kube.connection import Connection
from echorl_operator.kube.pods_by_name import PodByNameReader
from echorl_operator.kube.rare_reads import ReaderSettings
from echorl_testing.kube.wire_api import WireApi
from echorl_testing.operator.observed_worlds import run

PODS = "/api/v1/namespaces/ns/pods"


async def test_a_pod_without_any_label_of_ours_is_found_by_its_name(connection: Connection, api: WireApi) -> None:
    await api.set(PODS, "one-trainer-0", spec={"containers": []}, status={"phase": "Running"})
    reader = PodByNameReader(connection, ReaderSettings(first_s=0.0))
    assert await reader.ask(run(), ["one-trainer-0"])
    (found,) = reader.latest(run())
    assert (found.meta.name, found.meta.run_uid, found.role) == ("one-trainer-0", "", None)
    (asked,) = [dict(query) for _, path, query, *_ in api.requests if path == PODS]
    assert asked == {"fieldSelector": "metadata.name=one-trainer-0"}
    assert not await reader.ask(run(), [])
    assert reader.latest(run()) == ()
