"""The CRD as a whole: structural, bounded, documented, current."""

import json
import re
from pathlib import Path

import pytest
import yaml

from echorl_manifest.crd import crd_text, custom_resource_definition
from echorl_manifest.crd.assembly import MAX_BYTES, node_at, open_api_schema
from echorl_manifest.crd.immutability import immutability
from echorl_manifest.crd.refusals import REFUSALS
from echorl_manifest.crd.rules import RULES
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.mutability import Effect, effect_of
from echorl_manifest.schema import keys
from echorl_testing.manifests.refused import BROKEN_RULES, NOT_SUPPORTED_YET, indexed
from echorl_testing.manifests.refused_rules import REFUSED_RULES

FILE = Path(__file__).parents[4] / "crds" / "echorlruns.yaml"
NEVER = {"$ref", "$defs", "const", "anyOf", "oneOf", "allOf", "not", "prefixItems", "title", "x-accepts", "uniqueItems"}
SCHEMA = open_api_schema()


def nodes(schema, path=""):
    """Every part of a schema with its path."""
    yield path, schema
    for key, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{key}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}.*")


NODES = dict(nodes(SCHEMA))
OURS = {path: node for path, node in NODES.items() if path.startswith(("spec", "status"))}


def test_generated_file_is_current():
    assert FILE.read_text() == crd_text(), "run `make generate`"


def test_file_is_below_the_limit_of_an_annotation():
    """`kubectl apply` keeps the object as Go writes JSON: without spaces, and six characters for each of < > &."""
    kept = json.dumps(custom_resource_definition(), separators=(",", ":"), ensure_ascii=False)
    assert len(kept.encode()) + 5 * len(re.findall("[<>&]", kept)) < MAX_BYTES - 1024


def test_text_reads_back_as_the_object_and_holds_no_alias():
    assert yaml.safe_load(crd_text()) == json.loads(json.dumps(custom_resource_definition()))
    assert not re.search(r"[&*]id\d", crd_text())


def test_no_keyword_that_the_api_server_refuses():
    for path, node in NODES.items():
        assert not NEVER & set(node), path
        assert not isinstance(node.get("additionalProperties"), bool), path
        assert isinstance(node.get("exclusiveMinimum", True), bool), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path


def test_everything_that_can_grow_is_bounded():
    for path, node in OURS.items():
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
            case "object" if "additionalProperties" in node or "x-kubernetes-preserve-unknown-fields" in node:
                assert "maxProperties" in node, path
    assert NODES["spec.environments.train"]["maxItems"] == 64
    assert NODES["spec.environments.eval[].name"]["maxLength"] == 63


def test_every_field_is_described_without_markup():
    for path, node in OURS.items():
        if not path.endswith(("[]", ".*")):
            assert node.get("description"), path
        assert "``" not in node.get("description", ""), path


def test_what_may_be_left_out_may_be_null():
    scaled = {"spec.inference", "spec.inference.replicas"}
    for path, node in OURS.items():
        for key in node.get("properties", {}):
            inner = f"{path}.{key}"
            optional = (
                key not in node.get("required", ()) and inner not in scaled and "enum" not in node["properties"][key]
            )
            assert node["properties"][key].get("nullable", False) is optional, inner


def test_the_api_server_sets_only_what_the_scale_subresource_needs():
    defaults = {path: node["default"] for path, node in NODES.items() if "default" in node}
    assert defaults == {"spec.inference": {}, "spec.inference.replicas": 1}
    assert keys(type(keys(EchoRLRunSpec)["inference"].default))["replicas"].default == 1


def test_environments_are_lists_by_name():
    for kind in ("train", "eval"):
        node = NODES[f"spec.environments.{kind}"]
        assert (node["x-kubernetes-list-type"], node["x-kubernetes-list-map-keys"]) == ("map", ["name"])
    assert NODES["status.conditions"]["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("table", [RULES, REFUSALS, immutability()], ids=["rules", "refusals", "immutability"])
def test_rules_stand_somewhere_and_name_a_field(table):
    for place, entries in table.items():
        node = node_at(SCHEMA, place)
        for entry in entries:
            assert entry in node["x-kubernetes-validations"]
            if "fieldPath" in entry:
                assert node_at(node, entry["fieldPath"].lstrip("."))


def test_rules_are_short_enough_and_have_a_message():
    for path, node in NODES.items():
        for entry in node.get("x-kubernetes-validations", ()):
            assert entry["message"], path
            assert "\n" not in entry["message"], path
            assert len(entry["message"]) <= 2048, path
            assert "{" not in entry["message"], path


def test_patterns_of_list_items_are_short_enough_for_the_api_server():
    """It multiplies their length with how long and how many texts may be; 2,536 characters were 1.7 times too many."""
    items = node_at(SCHEMA, "spec.inference.extraArgs[]")
    rules = [entry["rule"] for entry in items["x-kubernetes-validations"]]
    assert rules
    assert max(map(len, rules)) * items["maxLength"] < 1_400 * 1_024


def fields_of_rules():
    for path, node in NODES.items():
        for entry in node.get("x-kubernetes-validations", ()):
            yield (path + entry.get("fieldPath", "")).lstrip("."), entry


@pytest.mark.parametrize("case", [*BROKEN_RULES, *REFUSED_RULES], ids=lambda case: case.id)
def test_every_rule_between_fields_is_there(case):
    if case.id == "duplicate train name":
        return  # the list's key says it
    path = re.sub(r"\[\d+\]", "[]", case.server_path or case.path)
    path = re.sub(r"\[\w+\]", ".*", path)
    assert any(field == path for field, _ in fields_of_rules()), path


@pytest.mark.parametrize("path", sorted({indexed(path) for path, _ in NOT_SUPPORTED_YET}))
def test_every_refusal_is_there(path):
    field = re.sub(r"\[\d+\]", "[]", path)
    assert any(
        field == other and entry["message"].startswith("not supported yet: ") for other, entry in fields_of_rules()
    )


def test_effects_are_told_and_what_is_refused_has_a_rule():
    guarded = {field for field, entry in fields_of_rules() if "oldSelf" in entry["rule"]}
    for path, node in OURS.items():
        is_leaf = not {"properties", "items", "additionalProperties"} & set(node) and not path.endswith(("[]", ".*"))
        if not path.startswith("spec.") or not is_leaf:
            continue
        inside_map = ".*." in path or "[]" in path.replace("train[]", "").replace("eval[]", "")
        if not inside_map:
            assert f"A change {effect_of(path).words}." in node["description"], path
            assert (path in guarded) is (effect_of(path) is Effect.IMMUTABLE), path


def test_columns_subresources_and_names():
    crd = custom_resource_definition()["spec"]
    version = crd["versions"][0]
    columns = version["additionalPrinterColumns"]
    assert [column["name"].upper() for column in columns] == [
        "PHASE",
        "REASON",
        "STEP",
        "REWARD",
        "POLICY",
        "CHECKPOINT",
        "RESTARTS",
        "AGE",
        "MESSAGE",
    ]
    assert [column.get("priority", 0) for column in columns] == [0] * 8 + [1]
    for column in columns:
        if column["jsonPath"].startswith(".status"):
            # Of a list of conditions, the item of one type.
            path = column["jsonPath"].lstrip(".").replace('[?(@.type=="Ready")]', "[]")
            assert node_at(SCHEMA, path)["type"] == column["type"]
    for path in version["subresources"]["scale"].values():
        assert node_at(SCHEMA, path.lstrip("."))
    assert version["subresources"]["status"] == {}
    assert (crd["names"]["shortNames"], crd["names"]["categories"]) == (["erl"], ["all"])


def test_the_chart_gets_the_same_with_the_keep_policy():
    plain, kept = custom_resource_definition(), custom_resource_definition(keep=True)
    assert kept["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert kept == plain
    assert "{{" not in crd_text(keep=True), "Helm would take it for a template"
