"""What charts/echorl renders to, against golden files. ``ECHORL_UPDATE_GOLDEN=1`` writes them anew."""

import json
import os
from pathlib import Path

import pytest
import yaml

from echorl_broker.__main__ import parser as broker_parser
from echorl_broker.settings import BrokerSettings
from echorl_manifest import load
from echorl_operator import names
from echorl_operator.__main__ import parser
from echorl_operator.kube.resources import CHILDREN
from echorl_operator.settings import Settings
from echorl_testing.kube.helm import CHART, CRDS, HelmError, objects
from echorl_testing.operator import operator_rights

HERE = Path(__file__).parent
CASES = ("default", "cluster-wide", "everything")
FROM_FILES = ("PrometheusRule", "echorl-dashboard-")
"""Alerts and dashboards: their files are the golden ones."""


class _Readable(yaml.SafeDumper):
    """Texts of several lines as they are."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def values(name):
    return yaml.safe_load((HERE / "values" / f"{name}.yaml").read_text())


def found(rendered, kind, name="echorl-operator", namespace="echorl-system"):
    (one,) = [
        one
        for one in objects(rendered)
        if one["kind"] == kind
        and one["metadata"]["name"] == name
        and one["metadata"].get("namespace") in {namespace, None}
    ]
    return one


def from_files(one):
    return one["kind"] == FROM_FILES[0] or one["metadata"]["name"].startswith(FROM_FILES[1])


def shown(one):
    """An object with its rules by their name in the one source."""
    for name, rules in operator_rights.rules().items():
        if one.get("rules") == rules:
            return one | {"rules": f"files/rules.yaml: {name}"}
    return one


@pytest.mark.parametrize("name", CASES)
def test_values_render_to_golden_objects(helm, name):
    own = [shown(one) for one in objects(helm.template(values(name))) if not from_files(one)]
    text = yaml.dump_all(own, Dumper=_Readable, sort_keys=False, width=120)
    golden = HERE / "golden" / f"{name}.yaml"
    if os.environ.get("ECHORL_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("chart", [CHART, CRDS], ids=lambda chart: chart.name)
@pytest.mark.parametrize("name", CASES)
def test_lint(helm, chart, name):
    helm("lint", "--strict", chart, values=values(name) if chart is CHART else {})


def test_the_crd_is_kept(helm):
    (crd,) = [one for one in objects(helm.template(chart=CRDS)) if one["kind"] == "CustomResourceDefinition"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("name", CASES)
def test_the_operator_understands_what_it_is_given(helm, name):
    rendered = helm.template(values(name))
    settings = found(rendered, "ConfigMap", "echorl-operator-settings")["data"]["settings.yaml"]
    Settings.model_validate({"operatorVersion": "1", **yaml.safe_load(settings)})
    (container,) = found(rendered, "Deployment")["spec"]["template"]["spec"]["containers"]
    options = parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"probes": options.probe_port, "metrics": options.metrics_port}
    roles = {one["metadata"]["namespace"] for one in objects(rendered) if one["kind"] == "Role"} - {"echorl-system"}
    assert roles == set(options.namespace or ()) - {"echorl-system"}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert str(Path(Settings(operator_version="1").master_key_path).parent) in mounts


@pytest.mark.parametrize("name", CASES[1:])
def test_the_broker_understands_what_it_is_given_and_runs_know_where_it_is(helm, name):
    rendered = helm.template(values(name))
    file = found(rendered, "ConfigMap", "echorl-broker-settings")["data"]["broker.yaml"]
    settings = BrokerSettings.model_validate(yaml.safe_load(file))
    template = found(rendered, "Deployment", "echorl-broker")["spec"]["template"]
    (container,) = template["spec"]["containers"]
    options = broker_parser().parse_args(container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": options.port, "metrics": options.metrics_port}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {str(options.settings.parent), str(Path(settings.master_key_path).parent)} <= mounts
    assert set(options.namespace or ()) == ({"research", "evaluation"} if name == "everything" else set())
    told = found(rendered, "ConfigMap", "echorl-operator-settings")["data"]["settings.yaml"]
    of_operator = Settings.model_validate({"operatorVersion": "1", **yaml.safe_load(told)})
    (service,) = [one for one in objects(rendered) if one["kind"] == "Service" and "broker" in one["metadata"]["name"]]
    assert of_operator.broker_url == f"http://echorl-broker.echorl-system.svc:{service['spec']['ports'][0]['port']}"
    assert (
        template["metadata"]["labels"].items()
        >= of_operator.broker_labels.items()
        == service["spec"]["selector"].items()
    )


def test_without_sandboxes_there_is_nothing_of_a_broker(helm):
    rendered = helm.template()
    assert not [one for one in objects(rendered) if "broker" in json.dumps(one)]


def test_runs_let_the_operators_pods_in(helm):
    labels = found(helm.template(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels.items() >= Settings(operator_version="1").operator_labels.items()


def test_the_network_policys_defaults_are_those_of_the_settings(helm):
    spec = found(helm.template(), "NetworkPolicy")["spec"]
    settings = Settings(operator_version="1")
    assert spec["ingress"][0]["from"] == [
        {"namespaceSelector": {"matchLabels": dict(settings.monitoring.namespace_labels)}}
    ]
    assert {
        "namespaceSelector": {"matchLabels": dict(settings.dns.namespace_labels)},
        "podSelector": {"matchLabels": dict(settings.dns.pod_labels)},
    } in spec["egress"][1]["to"]


def test_an_empty_selector_lets_everybody_in(helm):
    rendered = helm.template({"settings": {"monitoring": {}, "dns": {"namespaceLabels": {}}}})
    spec = found(rendered, "NetworkPolicy")["spec"]
    assert spec["ingress"][0]["from"] == [{"namespaceSelector": {}}]
    assert spec["egress"][1]["to"][0]["namespaceSelector"] == {}


def test_a_rollout_and_a_drain_leave_one_operator(helm):
    for replicas, unavailable, budgets in ((1, 0, 0), (2, 1, 1), (5, 1, 1)):
        rendered = helm.template({"replicas": replicas})
        update = found(rendered, "Deployment")["spec"]["strategy"]["rollingUpdate"]
        assert (replicas - update["maxUnavailable"] >= 1, update["maxUnavailable"]) == (True, unavailable)
        assert len([one for one in objects(rendered) if one["kind"] == "PodDisruptionBudget"]) == budgets


def test_the_test_run_is_a_valid_manifest(helm):
    for one in ({}, values("everything")):
        body = found(helm.template(one), "ConfigMap", "echorl-test")["data"]["run.json"]
        assert load(json.loads(body)).spec.max_steps == 3


def test_a_master_key_is_made_unless_one_is_named(helm):
    assert found(helm.template(), "Secret", "echorl-operator-master-key")["data"]["master-key"]
    assert not [one for one in objects(helm.template(values("default"))) if one["kind"] == "Secret"]


def test_new_settings_replace_the_pods_and_other_values_do_not(helm):
    def checksum(values):
        template = found(helm.template(values), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/settings"]

    assert checksum({}) == checksum({"disruptionBudget": {"enabled": False}})
    assert checksum({}) != checksum({"settings": {"storageSize": "1Gi"}})


def test_alerts_and_dashboards_are_those_of_their_files(helm):
    own = [one for one in objects(helm.template(values("everything"))) if from_files(one)]
    rules = {one["metadata"]["name"]: one["spec"] for one in own if one["kind"] == "PrometheusRule"}
    assert rules == {f"echorl-{path.stem}": yaml.safe_load(path.read_text()) for path in CHART.glob("rules/*.yaml")}
    boards = [one for one in own if one["kind"] == "ConfigMap"]
    texts = {name: json.loads(text) for one in boards for name, text in one["data"].items()}
    assert texts == {path.name: json.loads(path.read_text()) for path in CHART.glob("dashboards/*.json")}
    assert {one["metadata"]["labels"]["grafana_dashboard"] for one in boards} == {"1"}
    assert rules
    assert boards
    assert not [one for one in objects(helm.template()) if from_files(one)]


def test_everywhere_and_somewhere_at_once_is_refused(helm):
    with pytest.raises(HelmError, match=r"found clusterWide true and namespaces .*accepted is one of them"):
        helm.template({"watch": {"clusterWide": True, "namespaces": ["research"]}})


def test_the_childrens_policy_covers_every_kind_of_child(helm):
    """But for claims, which outlive their run, and pods, which are evicted by nature."""
    policy = found(helm.template(), "ValidatingAdmissionPolicy", "children.echorl-system.echorl.dev", None)
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    covered = {(group, plural) for rule in rules for group in rule["apiGroups"] for plural in rule["resources"]}
    ours = {(one.api_version.rpartition("/")[0], one.plural) for one in CHILDREN}
    assert covered - {("apps", "replicasets")} == ours - {("", "persistentvolumeclaims")}
    assert policy["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"][0]["key"] == names.LABEL_RUN_UID
