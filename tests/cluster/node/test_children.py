"""The children of runs on a real API server, in a namespace that enforces the ``restricted`` Pod Security Standard."""

import copy
import json

import pytest

from echorl_manifest import load
from echorl_operator.children import assembly as build
from echorl_operator.kube.resources import of_body
from echorl_operator.names import LABEL_RUN_UID
from echorl_operator.plan.drift import needs_apply
from echorl_testing.cluster.api import ApiError
from echorl_testing.cluster.images import BUSYBOX
from echorl_testing.cluster.pods import pod_when
from echorl_testing.cluster.processes import wait_for
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.rendered import MANIFESTS, SETTINGS, children, manifest

RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}
DEADLINE_S = 120.0


@pytest.fixture
def restricted(make_namespace):
    return make_namespace(RESTRICTED)


@pytest.fixture
def make_rendering(api, restricted):
    """Renders a run that is there: children of an owner that is not would be collected."""
    install_crd(api)

    def make(document):
        path = f"/apis/echorl.dev/v1alpha1/namespaces/{restricted}/echorlruns"
        uid = api.create(path, document)["metadata"]["uid"]
        return build.render(load(document), uid=uid, namespace=restricted, generation=1, settings=SETTINGS)

    return make


def path_of(body):
    return of_body(body).path(body["metadata"]["namespace"], body["metadata"]["name"])


@pytest.mark.parametrize("name", MANIFESTS)
def test_children_are_accepted_and_a_second_apply_changes_nothing(api, make_rendering, name):
    bodies = children(make_rendering(manifest(name)))
    for body in bodies:
        api.apply(path_of(body), body)
    for body in bodies:
        wait_for(f"{path_of(body)} is left as it is", lambda body=body: is_left(api, body), seconds=DEADLINE_S)
        assert body["kind"] == "Secret" or not needs_apply(body, api.get(path_of(body))), path_of(body)


def is_left(api, body):
    """Whether an apply writes nothing; controllers may write the object's status between the two requests."""
    before = api.get(path_of(body))["metadata"]["resourceVersion"]
    return api.apply(path_of(body), body)["metadata"]["resourceVersion"] == before


@pytest.mark.parametrize("name", MANIFESTS)
def test_controllers_can_make_the_pods(api, make_rendering, restricted, name):
    rendering = make_rendering(manifest(name))
    for body in children(rendering):
        api.apply(path_of(body), body)
    spec = rendering.spec
    wanted = {
        "trainer": spec["trainer"]["replicas"],
        "inference": spec["inference"]["replicas"],
        "orchestrator": 1,
        "prepare": 1,
        "environment": sum((one["server"] or {}).get("replicas", 0) for one in spec["environments"]["train"]),
    }

    def made():
        pods = api.get(f"/api/v1/namespaces/{restricted}/pods", labelSelector=f"{LABEL_RUN_UID}={rendering.uid}")[
            "items"
        ]
        roles = [pod["metadata"]["labels"]["echorl.dev/role"] for pod in pods]
        return {role: roles.count(role) for role in wanted} == wanted

    wait_for("all pods of the run are made", made, seconds=DEADLINE_S)
    pods = api.get(f"/api/v1/namespaces/{restricted}/pods", labelSelector="echorl.dev/role=trainer")["items"]
    for pod in pods:
        assert pod["spec"]["schedulingGates"] == [{"name": "echorl.dev/attempt"}]
        assert pod["metadata"]["labels"]["echorl.dev/attempt"] == "1"
        assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] in {"0", "1"}


def test_the_namespace_does_enforce(api, make_rendering):
    """The tests above rest on it."""
    rendering = make_rendering(manifest("quickstart"))
    for body in build.common(rendering):
        api.apply(path_of(body), body)
    body = build.orchestrator_pod(rendering, 1)
    body["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="allowPrivilegeEscalation"):
        api.apply(path_of(body), body)


MODEL = "/models/Qwen/Qwen3-8B"
RUN = "/volume/runs/two-pods"
SCRIPTS = {
    # What prepare does to the volume: the run's folder, a fetched model, a relative link to it.
    "prepare": f"mkdir -p {RUN} /volume/models/m@1 && echo weights > /volume/models/m@1/file"
    f" && ln -s ../../models/m@1 {RUN}/.model",
    "trainer": f"echo part > {RUN}/trainer && grep weights {MODEL}/file && ! touch {MODEL}/x",
    "orchestrator": f"echo part > {RUN}/orchestrator && grep weights {MODEL}/file && ! touch {MODEL}/x",
    "inference": f"grep weights {MODEL}/file && ! touch {MODEL}/x && ! ls {RUN}",
}
EVERYWHERE = (
    "test $(id -u) = 10001 && ! touch /x 2>&1 && touch $HOME/x $TMPDIR/x /var/run/echorl/x && mkdir -p $HF_HOME"
    " && test -s /etc/echorl/*.json && df /dev/shm"
)


def test_roles_can_read_and_write_what_they_mount(real_node, api, make_rendering, restricted):
    """Each role's own container of the rendering, with a shell in place of its program, on one volume."""
    rendering = make_rendering(manifest("two-pods"))
    for body in build.common(rendering):
        api.apply(path_of(body), body)
    pod = build.orchestrator_pod(rendering, 1)
    secret = build.token_secret(rendering, "token")
    api.apply(path_of(secret), secret)
    hub = {"metadata": {"name": "hub"}, "stringData": {"token": "the user's"}}
    api.create(f"/api/v1/namespaces/{restricted}/secrets", hub)
    containers, volumes = {}, {}
    for body in (
        build.prepare_pod(rendering, 1),
        build.trainer_set(rendering, 1, 2),
        build.inference_deployment(rendering, 1),
        pod,
    ):
        spec = body["spec"].get("template", body)["spec"]
        role = spec["containers"][0]["name"]
        containers[role] = as_shell(spec["containers"][0])
        volumes |= {f"{role}-{one['name']}": {**one, "name": f"{role}-{one['name']}"} for one in spec["volumes"]}
    whole = {name: volume for name, volume in volumes.items() if not name.endswith("-volume")}
    pod["spec"]["volumes"] = [*without_code(whole.values()), {"name": "volume", "emptyDir": {}}]
    pod["spec"]["initContainers"] = [containers["prepare"]]
    pod["spec"]["containers"] = [containers[role] for role in ("trainer", "inference", "orchestrator")]
    del pod["spec"]["imagePullSecrets"]
    api.create(f"/api/v1/namespaces/{restricted}/pods", pod)
    ended = pod_when(api, f"/api/v1/namespaces/{restricted}/pods/{pod['metadata']['name']}", has_ended, seconds=120)
    statuses = [*ended["status"]["initContainerStatuses"], *ended["status"]["containerStatuses"]]
    states = {one["name"]: one["state"].get("terminated", one["state"]) for one in statuses}
    assert {name: state.get("exitCode") for name, state in states.items()} == dict.fromkeys(containers, 0), json.dumps(
        states
    )


def has_ended(pod):
    return pod["status"].get("phase") in {"Succeeded", "Failed"}


def as_shell(container):
    """The container with its environment, mounts and security, running a script."""
    role = container["name"]
    shell = copy.deepcopy(container)
    for key in ("args", "resources", "startupProbe", "livenessProbe", "readinessProbe", "ports", "restartPolicy"):
        shell.pop(key, None)
    shell["image"], shell["imagePullPolicy"] = BUSYBOX, "IfNotPresent"
    shell["command"] = ["sh", "-exc", f"{EVERYWHERE} && {SCRIPTS[role]}"]
    shell["volumeMounts"] = [
        {**one, "name": one["name"] if one["name"] == "volume" else f"{role}-{one['name']}"}
        for one in shell["volumeMounts"]
        if one["name"] != "code"
    ]
    return shell


def without_code(volumes):
    return [one for one in volumes if not one["name"].endswith("-code")]
