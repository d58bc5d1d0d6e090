"""Template overlays: how they merge, and what is refused."""

import copy

import pytest

from echorl_operator.children import overlay_problems
from echorl_operator.children.overlay import OverlayRefused, merged
from echorl_testing.operator.template_overlays import BASE, PATH


def spec_of(overlay):
    return merged(BASE, {"spec": overlay}, PATH)["spec"]


def main_of(overlay):
    return spec_of({"containers": [{"name": "trainer", **overlay}]})["containers"][0]


def test_an_empty_overlay_changes_nothing():
    assert merged(BASE, {}, PATH) == BASE
    assert merged(BASE, {"spec": None, "metadata": {}}, PATH) == BASE


def test_the_template_is_not_changed_in_place():
    before = copy.deepcopy(BASE)
    main_of({"env": [{"name": "HOME", "value": "/other"}], "resources": {"limits": {"memory": "1Gi"}}})
    assert before == BASE


def test_containers_merge_by_name():
    spec = spec_of({"containers": [{"name": "trainer", "image": "theirs"}, {"name": "sidecar", "image": "s"}]})
    assert [(one["name"], one["image"]) for one in spec["containers"]] == [("trainer", "theirs"), ("sidecar", "s")]
    assert spec["containers"][0]["command"] == ["python"]


def test_variables_merge_by_name_and_have_one_source():
    env = main_of({"env": [{"name": "TOKEN", "value": "plain"}, {"name": "MORE", "value": "1"}]})["env"]
    assert env == [
        {"name": "HOME", "value": "/home"},
        {"name": "TOKEN", "value": "plain"},
        {"name": "MORE", "value": "1"},
    ]


def test_volumes_merge_by_name_and_have_one_source():
    larger = spec_of({"volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "9Gi"}}]})
    assert larger["volumes"] == [{"name": "scratch", "emptyDir": {"sizeLimit": "9Gi"}}]
    other = spec_of({"volumes": [{"name": "scratch", "persistentVolumeClaim": {"claimName": "fast"}}]})
    assert other["volumes"] == [{"name": "scratch", "persistentVolumeClaim": {"claimName": "fast"}}]


def test_mounts_merge_by_path():
    mounts = main_of({"volumeMounts": [{"name": "data", "mountPath": "/data"}]})["volumeMounts"]
    assert [one["mountPath"] for one in mounts] == ["/tmp", "/data"]


def test_tolerations_merge_by_key_and_effect():
    same = {"key": "nvidia.com/gpu", "operator": "Equal", "value": "h200", "effect": "NoSchedule"}
    other = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}
    assert spec_of({"tolerations": [same, other]})["tolerations"] == [same, other]


def test_other_lists_are_replaced():
    assert main_of({"command": ["mine"]})["command"] == ["mine"]


def test_a_probe_has_one_handler():
    assert main_of({"livenessProbe": {"exec": {"command": ["true"]}}})["livenessProbe"] == {
        "exec": {"command": ["true"]},
        "periodSeconds": 10,
    }


def test_null_is_not_set():
    spec = spec_of({"tolerations": None, "nodeSelector": {"a": None, "b": "c"}})
    assert spec["tolerations"] == BASE["spec"]["tolerations"]
    assert spec["nodeSelector"] == {"b": "c"}


CONTAINER = "spec.containers.0"


REFUSED = {
    "spec.serviceAccountName": "admin",
    "spec.serviceAccount": "admin",
    "spec.automountServiceAccountToken": True,
    "spec.hostNetwork": True,
    "spec.hostPID": True,
    "spec.hostIPC": True,
    "spec.restartPolicy": "OnFailure",
    "spec.schedulingGates": [],
    "spec.hostname": "x",
    "spec.subdomain": "x",
    "spec.nodeName": "node-1",
    "spec.volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    "spec.volumes.0": {"name": "volume", "emptyDir": {}},
    "spec.volumes.1": {"name": "v", "nfs": {"server": "x", "path": "/"}},
    "spec.volumes.2": {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
    "spec.securityContext.runAsUser": 0,
    "spec.securityContext.runAsNonRoot": False,
    "spec.securityContext.seccompProfile": {"type": "Unconfined"},
    "spec.securityContext.sysctls": [{"name": "kernel.msgmax", "value": "1"}],
    "metadata.labels": {"echorl.dev/attempt": "7"},
    "metadata.annotations": {"echorl.dev/hash": "0"},
    "metadata.name": "x",
    "kind": "Pod",
    f"{CONTAINER}.securityContext.privileged": True,
    f"{CONTAINER}.securityContext.allowPrivilegeEscalation": True,
    f"{CONTAINER}.securityContext.readOnlyRootFilesystem": False,
    f"{CONTAINER}.securityContext.runAsUser": 0,
    f"{CONTAINER}.securityContext.procMount": "Unmasked",
    f"{CONTAINER}.securityContext.capabilities": {"add": ["SYS_ADMIN"]},
    f"{CONTAINER}.securityContext.capabilities.drop": ["NET_RAW"],
    f"{CONTAINER}.securityContext.seLinuxOptions": {"type": "spc_t"},
    f"{CONTAINER}.restartPolicy": "Always",
    f"{CONTAINER}.env": [{"name": "ECHORL_ATTEMPT", "value": "9"}],
    f"{CONTAINER}.env.0": {"name": "RANK", "value": "0"},
    f"{CONTAINER}.volumeMounts": [{"name": "x", "mountPath": "/etc/echorl"}],
    f"{CONTAINER}.volumeMounts.0": {"name": "x", "mountPath": "/models/mine/"},
    f"{CONTAINER}.ports": [{"containerPort": 1, "hostPort": 1}],
    f"{CONTAINER}.livenessProbe": {"httpGet": {"host": "169.254.169.254", "port": 80}},
    f"{CONTAINER}.lifecycle": {"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}},
}


def overlay_with(path, value):
    lists = {"containers": [{"name": "trainer"}], "volumes": [], "env": [], "volumeMounts": []}
    overlay: dict = {}
    at: object = overlay
    parts = path.split(".")
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        at = _put(at, part, value if following is None else copy.deepcopy(lists.get(part, {})))
    return overlay


def _put(container, key, value):
    if isinstance(container, list):
        index = min(int(key), len(container))
        container[index:] = [container[index] if index < len(container) and value == {} else value]
        return container[index]
    return container.setdefault(key, value)


@pytest.mark.parametrize(("path", "value"), REFUSED.items(), ids=REFUSED)
def test_what_a_template_may_not_set(path, value):
    overlay = overlay_with(path, value)
    problems = overlay_problems(overlay, PATH)
    assert problems, overlay
    expected = path.replace(".0", "").replace(".1", "").replace(".2", "")
    assert all(problem.path.replace("[0]", "").startswith(f"{PATH}.{expected}") for problem in problems)
    assert all(str(problem) for problem in problems)
    with pytest.raises(OverlayRefused):
        merged(BASE, overlay, PATH)


@pytest.mark.parametrize(
    "overlay",
    [
        {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
        {"securityContext": {"runAsUser": 5000, "runAsGroup": 5000}},
        {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}},
        {"envFrom": [{"secretRef": {"name": "keys"}}]},
        {"livenessProbe": {"failureThreshold": 3}},
    ],
)
def test_what_a_container_may_set(overlay):
    assert overlay_problems({"spec": {"containers": [{"name": "trainer", **overlay}]}}, PATH) == []


def test_items_without_a_name_or_twice_are_refused():
    for items in ([{"image": "x"}], [{"name": "a"}, {"name": "a"}], ["trainer"], {"name": "trainer"}):
        assert overlay_problems({"spec": {"containers": items}}, PATH), items
