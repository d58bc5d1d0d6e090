"""The chart's policy on a real API server: what the broker's account asks for is a sandbox, or is not made."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from echorl_broker.agent_sandbox import sandbox_of
from echorl_broker.claims import claim_of, pool_of, template_of
from echorl_broker.profile import Owner, sandbox_pod
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_testing.cluster.api import Api, ApiError
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.run_objects import Runs, install_crd
from echorl_testing.manifests.documents import shortest, with_value
from echorl_testing.sandboxes.agent_sandbox import collection

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
RUN_UID, GATEWAY = "echorl.dev/run-uid", "echorl.dev/gateway"
STRATEGIC = "application/strategic-merge-patch+json"
DAEMON = "registry.example.org/sandbox-daemon:7"
SETTINGS = BrokerSettings(daemon_image=DAEMON, node_selector={"pool": "sandboxes"}, user_namespaces=True)
VALUES = {
    "sandboxes": {
        "enabled": True,
        "daemonImage": DAEMON,
        "nodeSelector": {"pool": "sandboxes"},
        "userNamespaces": True,
        "agentSandbox": True,
    }
}

Change = Callable[[dict[str, Any]], Any]
OTHERWISE: dict[str, tuple[Change, str]] = {
    "another role": (lambda pod: pod["metadata"]["labels"].update({"echorl.dev/role": "trainer"}), "sandboxes alone"),
    "nobody's": (lambda pod: pod["metadata"].pop("ownerReferences"), "belongs to an EchoRLRun"),
    "of another run than it says": (
        lambda pod: pod["metadata"]["labels"].update({"echorl.dev/run-uid": "other"}),
        "belongs to an EchoRLRun",
    ),
    "the node's network": (
        lambda pod: pod["spec"].update({"hostNetwork": True, "hostUsers": True}),
        "shares nothing with its node",
    ),
    "the node's processes": (
        lambda pod: pod["spec"].update({"hostPID": True, "hostUsers": True}),
        "shares nothing with its node",
    ),
    "names": (lambda pod: pod["spec"].update({"dnsPolicy": "ClusterFirst"}), "resolves no names"),
    "a node": (lambda pod: pod["spec"].update({"nodeName": "n1"}), "shares nothing with its node"),
    "a token": (lambda pod: pod["spec"].update({"automountServiceAccountToken": True}), "has no account|no volume"),
    "a Secret": (
        lambda pod: pod["spec"]["volumes"].append({"name": "x", "secret": {"secretName": "x"}}),
        "no volume but",
    ),
    "the node's files": (
        lambda pod: pod["spec"]["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
        "no volume but",
    ),
    "no end": (lambda pod: pod["spec"].pop("activeDeadlineSeconds"), "a sandbox ends"),
    "a second container": (
        lambda pod: pod["spec"]["containers"].append({**pod["spec"]["containers"][0], "name": "x"}),
        "one container",
    ),
    "another daemon": (lambda pod: pod["spec"]["initContainers"][0].update({"image": "x"}), "one container"),
    "a variable from a Secret": (
        lambda pod: pod["spec"]["containers"][0].update(
            {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "x", "key": "x"}}}]}
        ),
        "is told nothing",
    ),
    "no bound": (
        lambda pod: pod["spec"]["containers"][0].update({"resources": {"limits": {"cpu": "1"}}}),
        "is bounded",
    ),
    "root": (lambda pod: pod["spec"]["securityContext"].update({"runAsUser": 0}), "rights of user 1000"),
    "a container's own user": (
        lambda pod: pod["spec"]["containers"][0]["securityContext"].update({"runAsUser": 0}),
        "rights of user 1000",
    ),
    "capabilities": (
        lambda pod: pod["spec"]["containers"][0]["securityContext"].update({"capabilities": {"add": ["SYS_ADMIN"]}}),
        "rights of user 1000",
    ),
    "privileges": (
        lambda pod: pod["spec"]["containers"][0].update({"securityContext": {"privileged": True}}),
        "rights of user 1000",
    ),
    "another node": (lambda pod: pod["spec"].update({"nodeSelector": {"pool": "gpus"}}), "nodes for sandboxes"),
    "the node's users": (lambda pod: pod["spec"].pop("hostUsers"), "nobody on its node"),
}


MORE_OF_A_SANDBOX: dict[str, Change] = {
    "a pod of other labels": lambda held: held["spec"]["podTemplate"].update({"metadata": {"labels": {"x": "y"}}}),
    "a claim": lambda held: held["spec"].update({"volumeClaimTemplates": [CLAIM]}),
    "a Service": lambda held: held["spec"].update({"service": True}),
}
CLAIM = {"metadata": {"name": "x"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
MORE_OF_A_TEMPLATE: dict[str, Change] = {
    "a NetworkPolicy of the controller's": lambda spec: spec.pop("networkPolicyManagement"),
    "a NetworkPolicy of its own": lambda spec: spec.update({"networkPolicy": {"egress": [{}]}}),
    "claims that add variables": lambda spec: spec.update({"envVarsInjectionPolicy": "Allowed"}),
}
MORE_OF_A_CLAIM: dict[str, dict[str, Any]] = {
    "a variable": {"env": [{"name": "X", "value": "y"}]},
    "a label": {"additionalPodMetadata": {"labels": {"x": "y"}}},
}


def sandbox(namespace: str, run_uid: str, key: str | None = "agent") -> dict[str, Any]:
    limits = Limits(cpu=1, memory_bytes=1 << 28, disk_bytes=1 << 28)
    wanted = Wanted(run_uid=run_uid, image="task:1", workdir="/task", limits=limits, ttl_s=600)
    owner = Owner(namespace=namespace, run="one", uid=run_uid, attempt="1", orchestrator_uid="u")
    return sandbox_pod(owner, key, wanted, SETTINGS, nonce="00", token_sha256="ab" * 32)


CLAIM_OF_A = {"metadata": {"labels": {"echorl.dev/sandbox-claim": "a"}}}
NO_CLAIMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "to nobody": {"metadata": {"labels": {"echorl.dev/sandbox-warm": None}}},
    "of one that says no more what it is": with_value(
        CLAIM_OF_A, "metadata.labels", {**CLAIM_OF_A["metadata"]["labels"], "echorl.dev/sandbox-warm": None}
    ),
    "of another run": with_value(CLAIM_OF_A, "metadata.labels", {**CLAIM_OF_A["metadata"]["labels"], RUN_UID: "other"}),
    "to the gateway": with_value(
        CLAIM_OF_A, "metadata.labels", {**CLAIM_OF_A["metadata"]["labels"], GATEWAY: "allowed"}
    ),
    "another's": with_value(CLAIM_OF_A, "metadata.ownerReferences", []),
}


def claims_a_warm_one_once(broker: Api, pods: str, body: dict[str, Any]) -> None:
    path = f"{pods}/{broker.create(pods, body)['metadata']['name']}"
    for name, change in NO_CLAIMS.items():
        with pytest.raises(ApiError, match="makes, claims and deletes pods, and does nothing else"):
            broker.patch(path, {**change, "spec": {"activeDeadlineSeconds": 600}}), name
    other = [{"name": "sandbox", "image": "other"}]
    with pytest.raises(ApiError, match="does nothing else"):
        broker.patch(path, {**CLAIM_OF_A, "spec": {"containers": other}}, content_type=STRATEGIC)
    assert broker.patch(path, CLAIM_OF_A)["metadata"]["labels"]["echorl.dev/sandbox-claim"] == "a"
    with pytest.raises(ApiError, match="makes, claims and deletes pods, and does nothing else"):
        broker.patch(path, CLAIM_OF_A | {"spec": {"activeDeadlineSeconds": 300}})


def makes_pools_and_claims_that_add_nothing(broker: Api, pod: dict[str, Any], outcome: Callable[..., str]) -> None:
    template, pool, claim = template_of(pod), pool_of(pod, 1), claim_of(pod, "a-pool")
    assert [outcome(body) for body in (template, pool, claim)] == ["", "", ""]
    for name, change in MORE_OF_A_TEMPLATE.items():
        other = copy.deepcopy(template)
        change(other["spec"])
        assert "lets no claim add to its pods" in outcome(other), name
    for name, more in MORE_OF_A_CLAIM.items():
        assert "a claim is on a pool, and adds nothing" in outcome({**claim, "spec": {**claim["spec"], **more}}), name
    nobodys = copy.deepcopy(pool)
    nobodys["metadata"].pop("ownerReferences")
    assert "belongs to an EchoRLRun" in outcome(nobodys)
    pools = collection("SandboxWarmPool", pod["metadata"]["namespace"])
    path = f"{pools}/{broker.create(pools, pool)['metadata']['name']}"
    assert broker.patch(path, {"spec": {"replicas": 2}})["spec"]["replicas"] == 2
    changes: list[dict[str, Any]] = [
        {"spec": {"sandboxTemplateRef": {"name": "other"}}},
        {"metadata": {"labels": {GATEWAY: "allowed"}}},
        {"metadata": {"ownerReferences": []}},
    ]
    for change_of_it in changes:
        with pytest.raises(ApiError, match="does nothing else"):
            broker.patch(path, change_of_it)
    broker.request("DELETE", path, {})


def test_the_brokers_account_makes_sandboxes_and_nothing_else(
    sandbox_crds: None,
    release: Callable[..., str],
    make_namespace: Callable[..., str],
    api: Api,
    control_plane: Cluster,
    connection: Connection,
) -> None:
    # What the namespace's own standard would refuse is left to the policy.
    runs = make_namespace()
    # One that is there: what belongs to nobody is collected.
    install_crd(api)
    run_uid = Runs(api, runs).created(with_value(shortest(), "metadata.name", "one"))["metadata"]["uid"]
    installed = release(VALUES | {"watch": {"namespaces": [runs]}})
    broker = Api(connection, token=control_plane.service_account_token(installed, "echorl-broker"))
    pods = f"/api/v1/namespaces/{runs}/pods"

    def outcome(body: dict[str, Any]) -> str:
        path = pods if body["kind"] == "Pod" else collection(body["kind"], runs)
        try:
            broker.request("POST", path, body, query={"dryRun": "All"})
        except ApiError as error:
            return str(error)
        return ""

    def in_force() -> bool:
        pod = sandbox(runs, run_uid)
        pod["metadata"]["labels"].clear()
        return "ValidatingAdmissionPolicy" in outcome(pod)

    wait_for("the policy holds", in_force, seconds=PATIENCE_S)
    assert outcome(sandbox(runs, run_uid)) == "" == outcome(sandbox_of(sandbox(runs, run_uid)))
    with_an_image = sandbox(runs, run_uid)
    with_an_image["spec"]["volumes"].append({"name": "x", "image": {"reference": "agent:1"}})
    assert outcome(with_an_image) == ""
    for name, (change, words) in OTHERWISE.items():
        pod = copy.deepcopy(sandbox(runs, run_uid))
        change(pod)
        for told in (outcome(pod), outcome(sandbox_of(pod)), outcome(template_of(pod))):
            assert "ValidatingAdmissionPolicy" in told, (name, told)
            assert any(word in told for word in words.split("|")), (name, told)
    for name, change in MORE_OF_A_SANDBOX.items():
        held = copy.deepcopy(sandbox_of(sandbox(runs, run_uid)))
        change(held)
        assert "its own labels, and nothing besides" in outcome(held), name
    api.create(pods, {"metadata": {"name": "mine"}, "spec": {"containers": [{"name": "x", "image": "x"}]}})
    with pytest.raises(ApiError, match="makes and deletes sandboxes alone"):
        broker.request("DELETE", f"{pods}/mine", {})
    broker.create(pods, sandbox(runs, run_uid))
    name = sandbox(runs, run_uid)["metadata"]["name"]
    for subresource in ("exec", "attach", "portforward", "ephemeralcontainers"):
        method = "PATCH" if subresource == "ephemeralcontainers" else "POST"
        with pytest.raises(ApiError, match="cannot"):
            broker.request(method, f"{pods}/{name}/{subresource}", {}, content_type="application/merge-patch+json")
    with pytest.raises(ApiError, match="cannot"):
        broker.get(f"/api/v1/namespaces/{runs}/secrets")
    broker.request("DELETE", f"{pods}/{name}", {})
    claims_a_warm_one_once(broker, pods, sandbox(runs, run_uid, key=None))
    makes_pools_and_claims_that_add_nothing(broker, sandbox(runs, run_uid), outcome)
    # The policy is about the broker: others' pods are not its business.
    api.create(
        pods, {"metadata": {"name": "other"}, "spec": {"containers": [{"name": "x", "image": "x"}], "hostPID": True}}
    )
