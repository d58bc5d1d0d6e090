"""``echorl render FILE --cluster`` and ``--arrows``: what a manifest becomes in a cluster."""

import json

import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_cli.children import UNKNOWN_UID
from echorl_operator.kube.resources import of_body
from echorl_testing.kube.pod_security import violations
from echorl_testing.manifests.documents import full, shortest, with_value


@pytest.fixture
def render(tmp_path):
    """Calls the command with a manifest."""

    def call(document, *options):
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(document))
        arguments = ["render", str(file), *map(str, options)]
        return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")

    return call


def documents(text):
    return list(yaml.safe_load_all(text))


def names(bodies):
    return [(one["kind"], one["metadata"]["name"]) for one in bodies]


def rows(told):
    return [tuple(line.split()) for line in told.stdout.splitlines()]


@pytest.mark.parametrize("document", [shortest(), full()], ids=["shortest", "full"])
def test_children_are_whole_objects_that_the_operator_would_apply(render, document):
    told = render(document, "--cluster")
    assert (told.exit_code, told.stderr) == (0, "")
    bodies = documents(told.stdout)
    run = document["metadata"]["name"]
    assert {("StatefulSet", f"{run}-trainer"), ("Pod", f"{run}-prepare-1")} < set(names(bodies))
    for body in bodies:
        of_body(body)
        assert body["metadata"]["labels"]["echorl.dev/run-uid"] == UNKNOWN_UID
    assert all(not violations(body["spec"]) for body in bodies if body["kind"] == "Pod")
    as_json = render(document, "--cluster", "--format", "json")
    assert json.loads(as_json.stdout) == {"apiVersion": "v1", "kind": "List", "items": bodies}


def test_no_secret_is_shown(render):
    (secret,) = [one for one in documents(render(full(), "--cluster").stdout) if one["kind"] == "Secret"]
    assert not {"data", "stringData"} & secret.keys()


def test_where_and_for_which_installation(render, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("images: {trainer: example.org/trainer:7}\ndisruptionBudgets: true\n")
    told = documents(render(shortest(), "--cluster", "--settings", settings, "-n", "research").stdout)
    assert {one["metadata"]["namespace"] for one in told} == {"research"}
    (trainer,) = [one for one in told if one["kind"] == "StatefulSet"]
    assert trainer["spec"]["template"]["spec"]["containers"][0]["image"] == "example.org/trainer:7"
    assert "PodDisruptionBudget" in {one["kind"] for one in told}
    settings.write_text("images: [1]\n")
    told = render(shortest(), "--cluster", "--settings", settings)
    assert (told.exit_code, told.stdout) == (2, "")
    assert str(settings) in told.stderr


def test_arrows_are_a_table(render):
    document = with_value(shortest(), "spec.monitors", {"wandb": {"project": "p", "baseUrl": "http://10.1.2.3:8080"}})
    document["spec"]["egress"] = [
        {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 5000, "endPort": 5010}]},
        {},
    ]
    told = render(document, "--arrows")
    assert (told.exit_code, told.stderr) == (0, "")
    found = rows(told)
    assert found[0] == ("FROM", "TO", "PORT", "WHY")
    assert ("trainer", "trainer", "all", "collectives") in found
    assert ("monitoring", "inference", "TCP/8000", "metrics") in found
    assert ("orchestrator", "dns", "UDP/53,", "TCP/53", "names") in found
    assert ("orchestrator", "10.1.2.3/32", "TCP/8080", "Weights", "&", "Biases") in found
    assert ("trainer", "10.0.0.0/8", "TCP/5000-5010", "spec.egress[0]") in found
    assert ("prepare", "anywhere", "all", "spec.egress[1]") in found
    arrows = json.loads(render(document, "--arrows", "-f", "json").stdout)
    assert len(arrows) == len(found) - 1
    assert {"source": "trainer", "target": "trainer", "ports": [], "why": "collectives"} in arrows


def test_arrows_tell_whom_policies_do_not_hold(render, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("hostNetworkCidrs: [10.0.0.0/16]\n")
    document = with_value(shortest(), "spec.trainer.network.host", True)
    told = render(document, "--arrows", "--settings", settings)
    assert told.exit_code == 0
    below = told.stdout.partition("\n\n")[2].splitlines()
    assert below[0].startswith("trainer: on the network of their nodes (network.host), so no NetworkPolicy holds their")
    assert below[1].startswith("trainer: a port is taken once on a node")
    assert "\n\n" not in render(shortest(), "--arrows").stdout
    told = render(document, "--arrows")
    assert told.exit_code == 2
    assert "spec.trainer.network.host: this installation has no run on a node's network" in told.stderr


def test_what_only_a_cluster_refuses_is_told(render):
    document = with_value(shortest(), "spec.trainer.template", {"spec": {"hostPID": True}})
    assert render(document).exit_code == 0
    told = render(document, "--cluster")
    assert (told.exit_code, told.stdout) == (2, "")
    assert "run.yaml: spec.trainer.template.spec.hostPID: pods of a run share nothing with their node" in told.stderr


def test_one_at_a_time(render):
    told = render(shortest(), "--cluster", "--arrows")
    assert told.exit_code == 2
    assert "found --cluster and --arrows" in told.stderr


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\xff\xfe\0", "found byte 0 that is no UTF-8"),
        (b"a: [", "found no node content"),
        (b"- 1", "found a list"),
        (b"a0: &a [x]\nb: !!set {x}", "the tag !!set"),
    ],
)
def test_settings_that_are_none_are_told_with_their_file(render, tmp_path, content, found):
    file = tmp_path / "settings"
    file.write_bytes(content)
    told = render(shortest(), "--cluster", "--settings", file)
    assert told.exit_code == 2
    assert told.stderr.startswith(f"{file}: ")
    assert found in told.stderr


def test_a_namespace_that_no_cluster_has_is_refused(render):
    told = render(shortest(), "--cluster", "--namespace", "Bad_NS")
    assert told.exit_code == 2
    assert "Bad_NS" in told.stderr
    assert render(shortest(), "--cluster", "--namespace", "good-ns").exit_code == 0


def test_texts_of_a_templates_container_are_texts(render):
    container = {"name": "trainer", "image": 3, "args": "x"}
    told = render(with_value(shortest(), "spec.trainer.template", {"spec": {"containers": [container]}}), "--cluster")
    assert told.exit_code == 2
    for place in ("containers[0].image: found 3", 'containers[0].args: found "x"'):
        assert place in told.stderr
