"""Every object of both charts against the schemas of its kind, strictly: no field that the API does not know."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_testing.cluster.errors import Unavailable
from echorl_testing.kube.helm import CRDS, Helm, objects
from echorl_testing.kube.kubeconform import Kubeconform

CASES = sorted((Path(__file__).parent / "values").glob("*.yaml"))


@pytest.fixture(scope="module")
def kubeconform(tmp_path_factory: pytest.TempPathFactory) -> Kubeconform:
    try:
        return Kubeconform(tmp_path_factory.mktemp("schemas"))
    except Unavailable as error:
        pytest.skip(str(error))


def rendered(helm: Helm, case: str) -> list[dict[str, Any]]:
    values = yaml.safe_load((Path(__file__).parent / "values" / f"{case}.yaml").read_text())
    return objects(helm.template(values))


@pytest.mark.parametrize("case", [path.stem for path in CASES])
def test_the_chart_is_valid(helm: Helm, kubeconform: Kubeconform, case: str) -> None:
    found = rendered(helm, case)
    assert kubeconform.problems(found) == []
    wanted = {"PodMonitor", "PrometheusRule", "ServiceMonitor"} if case == "everything" else {"Deployment"}
    assert wanted <= {one["kind"] for one in found}


def test_the_chart_of_the_crds_is_valid(helm: Helm, kubeconform: Kubeconform) -> None:
    assert kubeconform.problems(objects(helm.template(chart=CRDS))) == []


@pytest.mark.parametrize(
    ("kind", "path", "value", "message"),
    [
        ("Deployment", ("spec", "replica"), 2, "additional properties 'replica' not allowed"),
        ("Deployment", ("spec", "replicas"), "2", "got string, want integer"),
        ("Deployment", ("spec", "template", "spec", "containers", 0, "securitycontext"), {}, "'securitycontext'"),
        ("Deployment", ("metadata", "label"), {}, "additional properties 'label' not allowed"),
        ("NetworkPolicy", ("spec", "egress", 0, "ports", 0, "protocols"), "TCP", "'protocols' not allowed"),
        ("ValidatingAdmissionPolicy", ("spec", "validations", 0, "reasons"), "x", "'reasons' not allowed"),
        ("ServiceMonitor", ("spec", "endpoints", 0, "honorLabel"), True, "'honorLabel' not allowed"),
        ("ServiceMonitor", ("metadata", "label"), {}, "'label' not allowed"),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "interval"), "often", "does not match pattern"),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "expr"), None, "expr"),
        ("Deployment", ("kind",), "Deploymint", "could not find schema"),
    ],
)
def test_what_is_wrong_is_found(
    helm: Helm, kubeconform: Kubeconform, kind: str, path: tuple[str | int, ...], value: object, message: str
) -> None:
    one = deepcopy(next(one for one in rendered(helm, "everything") if one["kind"] == kind))
    *parents, last = path
    place: Any = one
    for key in parents:
        place = place[key]
    place[last] = value
    (problem,) = kubeconform.problems([one])
    assert message in problem
