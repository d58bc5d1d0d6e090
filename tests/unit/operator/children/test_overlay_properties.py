"""Template overlays of any shape: the rules never fail, merging twice is merging once, nothing of ours is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echorl_operator.children import cluster_problems, overlay_problems
from echorl_operator.children.overlay import merged
from echorl_testing.kube.pod_security import violations
from echorl_testing.manifests.documents import shortest, with_value
from echorl_testing.operator.rendered import SETTINGS, children, pod_specs, rendered
from echorl_testing.operator.template_overlays import BASE, PATH

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
@settings(max_examples=300, deadline=None)
def test_no_json_makes_the_rules_fail(overlay):
    """Refused or not: never another exception, whatever a user writes."""
    refused = overlay_problems(overlay, PATH)
    if not refused:
        merged(BASE, overlay, PATH)
        if isinstance(overlay, dict):
            cluster_problems(rendered_run(overlay), SETTINGS)


def rendered_run(overlay):
    from echorl_manifest import EchoRLRun  # noqa: PLC0415

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
@settings(max_examples=150)
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
