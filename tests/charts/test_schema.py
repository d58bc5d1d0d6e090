"""values.schema.json: it knows exactly the values that there are, and refuses all else."""

import json
import re
import tomllib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from echorl_operator.quantities import canonical
from echorl_operator.settings import QUANTITY
from echorl_testing.kube.helm import CHART, CHARTS, HelmError
from tools.chart.page import BEGIN, END, page_with_values
from tools.chart.schema import values_schema
from tools.chart.values import Values


def written(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replica", 2),
        ("replicas", "2"),
        ("replicas", 0),
        ("image.tagg", "1"),
        ("image.pullPolicy", "Sometimes"),
        ("image.digest", "sha256:1"),
        ("watch.clusterWide", "true"),
        ("watch.namespaces", "research"),
        ("watch.namespaces", ["Research"]),
        ("settings.image", {}),
        ("settings.images.trainers", "x"),
        ("settings.trainer.scratch", "much"),
        ("settings.trainer.requests.cpu", 2),
        ("settings.startDeadlineSeconds", 1),
        ("settings.operatorNamespace", "elsewhere"),
        ("settings.masterKeyPath", "/etc/passwd"),
        ("settings.gpuTolerations", [{"keys": "x"}]),
        ("masterKey.secret", "x"),
        ("networkPolicy.apiServer.ports", []),
        ("networkPolicy.apiServer.ports", [70000]),
        ("monitoring.serviceMonitor.interval", "often"),
        ("nodeSelector.pool", 1),
        ("podAnnotations", ["x"]),
        ("test.timeoutSeconds", 1),
        ("logStyle", "yaml"),
    ],
)
def test_unknown_and_mistyped_values_are_refused(helm, path, value):
    # The validator names a value by its path with slashes, and an unknown key at its parent.
    parent = "/".join(path.split(".")[:-1])
    with pytest.raises(HelmError, match=f"(?s)don't meet the specifications of the schema.*{parent}"):
        helm.template(written(path, value))
    if not path.startswith("settings.operatorNamespace") and not path.startswith("settings.masterKeyPath"):
        with pytest.raises(ValidationError):
            Values.model_validate(written(path, value))


@pytest.mark.parametrize("values", [{"global": {"x": 1}}, {"settings": {"images": {"trainer": None}}}, {}])
def test_what_helm_and_people_write_is_taken(helm, values):
    helm.template(values)


def test_defaults_stand_in_values_yaml():
    """All of them, and those of the models; those of the settings are the operator's."""
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    assert found.pop("settings") == {}
    wanted = Values().model_dump(mode="json", by_alias=True)
    del wanted["settings"]
    assert found == wanted


def test_every_object_refuses_unknown_keys():
    def objects(node):
        if isinstance(node, dict):
            if "properties" in node:
                yield node
            for inner in node.values():
                yield from objects(inner)

    found = [node for node in objects(values_schema()) if node["properties"].get("type") is None]
    assert len(found) > 15
    assert all(node["additionalProperties"] is False for node in found)


def test_generated_files_are_fresh():
    assert json.loads((CHART / "values.schema.json").read_text()) == values_schema()
    page = (CHARTS.parent / "docs" / "install.md").read_text()
    assert page == page_with_values(page)
    with pytest.raises(ValueError, match="accepted is a page with both"):
        page_with_values(page.replace(BEGIN, "").replace(END, ""))


def test_charts_and_packages_have_one_version():
    wanted = tomllib.loads((CHARTS.parent / "operator" / "distributions" / "operator" / "pyproject.toml").read_text())[
        "project"
    ]["version"]
    for chart in CHARTS.iterdir():
        found = yaml.safe_load((chart / "Chart.yaml").read_text())
        assert (found["version"], found["appVersion"]) == (wanted, wanted), chart.name


@example("1e999999999")
@given(st.one_of(st.from_regex(QUANTITY, fullmatch=True), st.text("0123456789.KMGTPEinumke+- ", max_size=12)))
def test_the_pattern_takes_no_more_and_no_less_than_the_operator(text):
    try:
        canonical(text)
        accepted = not text.startswith(("+", "-")) and text == text.strip()
    except (ValueError, OverflowError):
        accepted = False
    assert bool(re.fullmatch(QUANTITY[1:-1], text, re.ASCII)) is accepted
