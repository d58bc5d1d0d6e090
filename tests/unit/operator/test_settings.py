"""The operator's settings, as its file holds them."""

import pytest
from pydantic import ValidationError

from echorl_operator.children import common
from echorl_operator.settings import Settings
from echorl_testing.manifests.documents import shortest
from echorl_testing.operator.rendered import pod_specs, rendered

FILE = {
    "operatorVersion": "1.2.3",
    "operatorNamespace": "ml",
    "images": {"trainer": "example.org/trainer:5", "inferenceCpu": None},
    "imagePullPolicy": "Never",
    "imagePullSecrets": ["site"],
    "hostNetworkCidrs": ["10.0.0.0/16"],
    "dns": {"cidrs": ["169.254.20.10/32"]},
    "gpuResource": "example.org/gpu",
    "gpuTolerations": [{"key": "example.org/gpu"}],
    "trainer": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "scratch": "2048Gi"},
    "hubEndpoint": "https://hub.example.org",
    "disruptionBudgets": True,
    "startDeadlineSeconds": 600,
}


def test_a_settings_file_reaches_the_pods():
    rendering = rendered(shortest(), settings=Settings.model_validate(FILE))
    specs = dict(pod_specs(rendering))
    trainer = specs["trainer"]["containers"][0]
    assert (trainer["image"], trainer["imagePullPolicy"]) == ("example.org/trainer:5", "Never")
    requests = {"cpu": "1", "memory": "1Gi", "example.org/gpu": "1"}
    assert trainer["resources"] == {"requests": requests, "limits": {"example.org/gpu": "1"}}
    assert {"name": "scratch", "emptyDir": {"sizeLimit": "2Ti"}} in specs["trainer"]["volumes"]
    assert not any(one["name"] == "shm" for one in specs["trainer"]["volumes"])
    assert specs["trainer"]["tolerations"][0]["key"] == "example.org/gpu"
    assert specs["prepare"]["containers"][0]["image"] == "echorl/orchestrator:1.2.3"
    start = trainer["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] == 600
    assert "169.254.20.10/32" in str([body for body in common(rendering) if body["kind"] == "NetworkPolicy"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"operatorVersion": None}, "operatorVersion"),
        ({"images": {"trainers": "x"}}, "images.trainers"),
        ({"trainer": {"scratch": "much"}}, "trainer.scratch"),
        ({"startDeadlineSeconds": 1}, "startDeadlineSeconds"),
    ],
)
def test_wrong_settings_are_refused(changed, message):
    with pytest.raises(ValidationError, match=message):
        Settings.model_validate({**FILE, **changed})
