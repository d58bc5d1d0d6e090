"""The pod of a sandbox: a golden file, the standard it keeps, and what no request can change."""

import os
from pathlib import Path

import msgspec
import yaml
from hypothesis import given
from hypothesis import strategies as st

from echorl_broker import labels
from echorl_broker.profile import Owner, sandbox_pod
from echorl_broker.settings import BrokerSettings
from echorl_core.wire.sandboxes import Limits, Wanted
from echorl_testing.kube.pod_security import violations

GOLDEN = Path(__file__).parents[2] / "golden" / "broker" / "sandbox-pod.yaml"
UID = "5f1c0a52-7c0e-4f4b-9d1a-2f1f9f0f8f11"
OWNER = Owner(
    namespace="research",
    run="solve",
    uid=UID,
    attempt="3",
    orchestrator_uid="00000000-1111-2222-3333-444444444444",
    image_pull_secrets=["site", "team"],
)
SETTINGS = BrokerSettings(
    daemon_image="echorl/sandbox-daemon:0.1.0",
    image_pull_secrets=("site",),
    runtime_class_name="gvisor",
    user_namespaces=True,
    priority_class_name="low",
    node_selector={"pool": "sandboxes"},
    tolerations=({"key": "sandboxes", "operator": "Exists"},),
)
WANTED = Wanted(
    run_uid=UID,
    image="registry.example.com/task:1",
    workdir="/task",
    limits=Limits(cpu=0.5, memory_bytes=2 << 30, disk_bytes=3_000_000_000),
    ttl_s=900.5,
    gateway=True,
)


def pod(wanted=WANTED, settings=SETTINGS, key="agent"):
    return sandbox_pod(OWNER, key, wanted, settings, nonce="00ff", token_sha256="ab" * 32)


def test_the_pod_is_the_golden_one():
    text = yaml.safe_dump(pod(), sort_keys=False, width=120)
    if os.environ.get("ECHORL_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_what_an_installation_does_not_choose_is_left_out():
    spec = pod(settings=BrokerSettings(daemon_image="daemon:1"))["spec"]
    chosen = {"runtimeClassName", "priorityClassName", "nodeSelector", "tolerations", "hostUsers"}
    assert not chosen & spec.keys()
    assert spec["imagePullSecrets"] == [{"name": "site"}, {"name": "team"}]


def test_volumes_are_images_that_nothing_can_be_written_to():
    wanted = msgspec.structs.replace(WANTED, volumes={"/opt/b": "b:1", "/opt/a": "a:1"})
    spec = pod(wanted)["spec"]
    assert spec["volumes"][2:] == [
        {"name": "volume-0", "image": {"reference": "a:1", "pullPolicy": "IfNotPresent"}},
        {"name": "volume-1", "image": {"reference": "b:1", "pullPolicy": "IfNotPresent"}},
    ]
    assert spec["containers"][0]["volumeMounts"][2:] == [
        {"name": "volume-0", "mountPath": "/opt/a", "readOnly": True},
        {"name": "volume-1", "mountPath": "/opt/b", "readOnly": True},
    ]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@given(image=TEXT, workdir=TEXT.map(lambda text: f"/{text}"), gateway=st.booleans(), cpu=st.floats(1e-3, 64))
def test_no_request_leaves_the_profile(image, workdir, gateway, cpu):
    limits = Limits(cpu=cpu, memory_bytes=12345, disk_bytes=1 << 20)
    wanted = Wanted(run_uid=UID, image=image, workdir=workdir, limits=limits, ttl_s=1.0, gateway=gateway)
    made, expected = pod(wanted), pod()
    assert violations(made["spec"]) == []
    (container,), (usual,) = made["spec"].pop("containers"), expected["spec"].pop("containers")
    own = {"image", "command", "resources"}
    assert {name: part for name, part in container.items() if name not in own} == {
        name: part for name, part in usual.items() if name not in own
    }
    assert container["command"][:2] == usual["command"][:2]
    assert container["command"][container["command"].index("--workdir") + 1].replace("$$", "$") == workdir
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert ("echorl.dev/gateway" in made["metadata"]["labels"]) == gateway
    for spec in (made["spec"], expected["spec"]):
        spec.pop("activeDeadlineSeconds")
        spec["volumes"][1]["emptyDir"].pop("sizeLimit")
    assert made["spec"] == expected["spec"]


@given(run=st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True), key=TEXT)
def test_names_of_pods_are_host_names_and_differ_by_run_and_key(run, key):
    name = labels.pod_name(run, UID, key)
    assert len(name) <= 63
    assert name.startswith(run[:38].rstrip("-"))
    assert name == labels.pod_name(run, UID, key)
    assert name not in {labels.pod_name(run, "other", key), labels.pod_name(run, UID, f"{key}x")}
