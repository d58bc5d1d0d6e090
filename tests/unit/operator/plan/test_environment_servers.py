"""Servers of environments that are images: there before they are needed, gone when nothing is played any more."""

import json
from dataclasses import replace
from typing import Any

from echorl_operator.diagnosis.obstacles import first_obstacle
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ChildRecord, ContainerPhase, Kind
from echorl_testing.operator.imagined_cluster import ImaginedCluster
from echorl_testing.operator.observed_worlds import container

IMAGE = "openenv:registry.example.org/games/wordle:1"
SERVER = "one-env-wordle"


def games(image: str = IMAGE, **server: Any) -> dict[str, Any]:
    """The block ``environments``."""
    return {"train": [{"name": "wordle", "type": image, "server": server}]}


def deployment(cluster: ImaginedCluster) -> ChildRecord:
    return cluster.children[Kind.DEPLOYMENT, SERVER]


def spec(cluster: ImaginedCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(deployment(cluster).body)["spec"]
    return found


def count(cluster: ImaginedCluster, **counts: Any) -> None:
    """The Deployment's controller counts other pods."""
    cluster.children[Kind.DEPLOYMENT, SERVER] = replace(deployment(cluster), **counts)


def test_the_orchestrator_waits_for_a_server_that_is_ready_and_of_this_manifest() -> None:
    cluster = ImaginedCluster(environments=games(replicas=2))
    cluster.rolls_out = False
    cluster.settle()
    waits = (f"waiting for servers of environments: {SERVER}", "Starting")
    assert (cluster.status["message"], cluster.status["phase"]) == waits
    count(cluster, updated=2, ready=0)
    cluster.settle()
    assert cluster.status["message"] == waits[0]
    assert "one-orchestrator" not in cluster.pods
    assert {"one-trainer-0", "one-inference-0"} <= set(cluster.pods), "nobody else waits for it"
    count(cluster, ready=1)
    cluster.begin()
    assert "one-orchestrator" in cluster.pods
    assert cluster.status["roles"]["environment"] == {"ready": 2, "desired": 2}


def test_a_server_that_is_lost_later_ends_nothing() -> None:
    cluster = ImaginedCluster(environments=games()).begin()
    before = set(cluster.pods)
    count(cluster, ready=0)
    made = cluster.settle()
    assert (set(cluster.pods), made.actions) == (before, ())
    assert cluster.status["phase"] == "Running"


def test_other_sizes_replace_the_servers_alone() -> None:
    cluster = ImaginedCluster(environments=games()).begin()
    others = {name: pod.meta.uid for name, pod in cluster.pods.items() if pod.role is not PodRole.ENVIRONMENT}
    cluster.edit(environments=games(replicas=3, memory="4Gi"))
    cluster.settle()
    assert (spec(cluster)["replicas"], cluster.status["attempt"]) == (3, 1)
    assert spec(cluster)["template"]["spec"]["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}
    assert {name: cluster.pods[name].meta.uid for name in others} == others
    assert cluster.status["roles"]["environment"] == {"ready": 3, "desired": 3}


def test_another_image_is_served_to_another_attempt() -> None:
    cluster = ImaginedCluster(environments=games()).begin()
    cluster.edit(environments=games(f"{IMAGE}2"))
    cluster.settle()
    assert spec(cluster)["template"]["spec"]["containers"][0]["image"] == "registry.example.org/games/wordle:12"
    assert cluster.status["attempt"] == 2


def test_suspended_runs_and_those_that_have_ended_have_no_servers() -> None:
    cluster = ImaginedCluster(environments=games()).begin()
    cluster.edit(suspend=True)
    cluster.end("one-orchestrator", 0)
    cluster.settle()
    assert (cluster.status["phase"], cluster.pods) == ("Suspended", {})
    assert (Kind.DEPLOYMENT, SERVER) not in cluster.children
    assert (Kind.DEPLOYMENT, "one-inference") in cluster.children
    cluster.edit(suspend=False)
    cluster.begin()
    assert deployment(cluster).ready == 1


def test_what_ends_a_run_ends_its_servers_even_if_nobody_knows_how_it_was_rendered() -> None:
    for is_known in (True, False):
        cluster = ImaginedCluster(environments=games(), activeDeadlineSeconds=600).begin()
        if not is_known:
            cluster.children = {key: one for key, one in cluster.children.items() if key[0] is not Kind.REVISION}
        cluster.settle_after(601.0)
        assert cluster.status["phase"] == "Failed"
        assert not [pod for pod in cluster.pods.values() if pod.role is PodRole.ENVIRONMENT]
        assert (Kind.DEPLOYMENT, SERVER) not in cluster.children


def test_the_server_of_an_environment_that_was_taken_out_goes_once_nobody_plays_it() -> None:
    digits = {"name": "digits", "type": "builtin:digits"}
    cluster = ImaginedCluster(environments={"train": [digits, *games()["train"]]}).begin()
    assert (Kind.DEPLOYMENT, SERVER) in cluster.children
    cluster.edit(environments={"train": [digits]})
    cluster.settle()
    cluster.begin()
    assert [one.name for one in cluster.deleted if one.kind == "Deployment"] == [SERVER]
    assert cluster.status["attempt"] == 2
    assert "one-inference-0" in cluster.pods


def test_a_server_that_does_not_come_up_is_told() -> None:
    cluster = ImaginedCluster(environments=games())
    cluster.rolls_out = False
    cluster.settle()
    pod = cluster.pods[f"{SERVER}-0"]
    main = container("environment", ContainerPhase.WAITING, reason="ImagePullBackOff", message="not found")
    cluster.pods[f"{SERVER}-0"] = replace(pod, ready=False, containers=(main,))
    cluster.settle_after(60.0)
    assert cluster.condition("Blocked")[:2] == ("True", "ImagePullFailed")
    obstacle = first_obstacle(cluster.world())
    assert obstacle is not None
    assert obstacle.message == f"{SERVER}-0 cannot get its image: ImagePullBackOff: not found; since 1 min"
