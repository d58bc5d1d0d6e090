"""Template overlays: how they merge, what is refused, and that nothing of ours gets lost on the way."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_operator.build import cluster_problems, overlay_problems
from echorl_operator.build.overlay import OverlayRefused, merged
from echorl_testing.manifests import shortest, with_value
from echorl_testing.pod_security import violations
from echorl_testing.rendered import SETTINGS, children, pod_specs, rendered

PATH = "spec.trainer.template"
BASE = {
    "metadata": {"labels": {"echorl.dev/role": "trainer"}},
    "spec": {
        "containers": [
            {
                "name": "trainer",
                "image": "ours",
                "command": ["python"],
                "env": [{"name": "HOME", "value": "/home"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {}}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"}],
                "livenessProbe": {"httpGet": {"path": "/healthz"}, "periodSeconds": 10},
                "resources": {"requests": {"cpu": "1"}},
            }
        ],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "restartPolicy": "Always",
    },
}


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


NAMES = st.sampled_from(["trainer", "sidecar", "HOME", "scratch", "shm", "volume", "RANK", "other"])
FIELDS = st.sampled_from(
    [
        *("metadata", "spec", "labels", "annotations", "containers", "initContainers", "env", "volumes"),
        *("volumeMounts", "tolerations", "securityContext", "capabilities", "add", "drop", "privileged", "hostPath"),
        *("serviceAccountName", "resources", "limits", "requests", "memory", "name", "mountPath", "emptyDir"),
        *("restartPolicy", "runAsUser", "runAsNonRoot", "livenessProbe", "httpGet", "host", "key", "effect"),
        *("projected", "sources", "serviceAccountToken", "lifecycle", "preStop", "ports", "seccompProfile", "type"),
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["", "ALL", "x", "Unconfined"]) | NAMES
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=25
)


PARTS = JSON | st.dictionaries(FIELDS, JSON, max_size=3)
NAMED = st.lists(st.builds(lambda name, rest: {**rest, "name": name}, NAMES, st.dictionaries(FIELDS, JSON)), max_size=2)
PODS = st.dictionaries(FIELDS, JSON, max_size=2) | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("containers", "initContainers", "volumes", "tolerations"), NAMED)
)


@given(PARTS | st.fixed_dictionaries({}, optional={"metadata": PARTS, "spec": PARTS | PODS}))
@settings(max_examples=600, deadline=None)
def test_no_json_makes_the_rules_fail(overlay):
    """Refused or not: never another exception, whatever a user writes."""
    refused = overlay_problems(overlay, PATH)
    if not refused:
        merged(BASE, overlay, PATH)
        if isinstance(overlay, dict):
            cluster_problems(rendered_run(overlay), SETTINGS)


def rendered_run(overlay):
    from echorl_operator.api import EchoRLRun  # noqa: PLC0415

    return EchoRLRun.model_validate(with_value(shortest(), "spec.trainer.template", overlay))


def items(**fields):
    return st.lists(st.fixed_dictionaries({"name": NAMES}, optional=fields), max_size=3, unique_by=lambda x: x["name"])


CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "runAsUser": st.sampled_from([0, 10001, 5000]),
        "runAsNonRoot": st.booleans(),
        "privileged": st.booleans(),
        "allowPrivilegeEscalation": st.booleans(),
        "readOnlyRootFilesystem": st.booleans(),
        "seccompProfile": st.fixed_dictionaries({"type": st.sampled_from(["RuntimeDefault", "Unconfined"])}),
        "capabilities": st.fixed_dictionaries(
            {},
            optional={
                "add": st.lists(st.sampled_from(["SYS_ADMIN", "NET_BIND_SERVICE"]), max_size=1),
                "drop": st.lists(st.sampled_from(["ALL", "NET_RAW"]), max_size=1),
            },
        ),
    },
)
MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"name": NAMES, "mountPath": st.sampled_from(["/tmp", "/data", "/etc/echorl", "/volume/x", "/dev/shm"])}
    ),
    max_size=2,
    unique_by=lambda mount: mount["mountPath"],
)
CONTAINERS = items(
    image=st.just("example.org/x:1"),
    env=items(value=st.sampled_from(["", "1"])),
    securityContext=CONTEXTS,
    volumeMounts=MOUNTS,
    resources=st.just({"requests": {"cpu": 3}}),
)
OVERLAYS = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"labels": st.dictionaries(st.sampled_from(["team", "echorl.dev/role"]), st.just("x"))}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": CONTAINERS,
                "initContainers": CONTAINERS,
                "volumes": items(emptyDir=st.just({}), hostPath=st.just({"path": "/"})),
                "securityContext": CONTEXTS,
                "nodeSelector": st.just({"a": "b"}),
                "serviceAccountName": st.just("default"),
            },
        ),
    },
)


@given(OVERLAYS)
@settings(max_examples=300)
def test_merging_twice_is_merging_once(overlay):
    if not overlay_problems(overlay, PATH):
        once = merged(BASE, overlay, PATH)
        assert merged(once, overlay, PATH) == once


def protected(rendering):
    """What the safety of a cluster, of attempts and of other runs rests on."""
    found = {}
    for role, spec in pod_specs(rendering):
        main = next(one for one in spec["containers"] if one["name"] == role)
        found[role] = {
            "account": (spec["serviceAccountName"], spec["automountServiceAccountToken"], spec["enableServiceLinks"]),
            "gates": spec.get("schedulingGates"),
            "restart": (spec["restartPolicy"], main.get("restartPolicy")),
            "root": main["securityContext"]["readOnlyRootFilesystem"],
            "identity": [one for one in main["env"] if one["name"].startswith(("ECHORL_", "MASTER_"))],
            "config": next(one for one in spec["volumes"] if one["name"] == "config"),
            "volume": next(one for one in spec["volumes"] if one["name"] == "volume"),
            "mounts": [one for one in main["volumeMounts"] if one["name"] in {"config", "volume"}],
        }
    return found


def labels(rendering):
    return [
        {key: text for key, text in owner["metadata"]["labels"].items() if key != "team"}
        for body in children(rendering)
        for owner in (body, body.get("spec", {}).get("template"))
        if owner is not None
    ]


PLAIN = rendered(shortest())


@given(OVERLAYS, st.sampled_from(["trainer", "inference", "orchestrator"]))
@settings(max_examples=300, deadline=None)
def test_no_overlay_that_is_taken_loses_what_is_ours(overlay, role):
    document = with_value(shortest(), f"spec.{role}.template", overlay)
    if overlay_problems(overlay, f"spec.{role}.template"):
        with pytest.raises(ValueError, match=rf"spec\.{role}\.template"):
            rendered(document)
        return
    rendering = rendered(document)
    assert protected(rendering) == protected(PLAIN)
    assert labels(rendering) == labels(PLAIN)
    for name, spec in pod_specs(rendering):
        assert violations(spec) == [], name
