import dataclasses
import json
import re

import pytest

from echorl_manifest import load
from echorl_operator.children import RevisionTooLarge, from_revision, render, to_revision
from echorl_operator.children.target import canonical_json
from echorl_operator.settings import Settings
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.operator.rendered import NAMESPACE, UID, children, rendered


@pytest.mark.parametrize("document", [shortest(), full()], ids=["shortest", "full"])
def test_a_rendering_survives_its_revision(document):
    rendering = rendered(document)
    body = json.loads(json.dumps(to_revision(rendering, load(document), 3, 1)))
    assert body["metadata"]["name"] == f"{document['metadata']['name']}-3-1"
    assert body["metadata"]["labels"]["echorl.dev/attempt"] == "3"
    again = from_revision(body)
    assert again == rendering
    assert children(again, 3) == children(rendering, 3)
    assert canonical_json(children(again, 3)) == canonical_json(children(rendering, 3))


def test_a_revision_says_where_it_comes_from():
    rendering = from_revision(to_revision(rendered(shortest()), load(shortest()), 1, 1))
    assert (rendering.generation, rendering.operator_version) == (1, "0.1.0")
    assert rendering.spec["maxSteps"] == 500
    other = rendered(with_value(shortest(), "spec.maxSteps", 7))
    assert other.spec_hash != rendering.spec_hash
    assert other.config_hash != rendering.config_hash


def test_defaults_that_are_written_out_change_no_hash():
    """As when the CRD gets a default, and stored objects are read back with it."""
    explicit = with_value(shortest(), "spec.checkpoint", {"interval": 25, "keepLast": 2})
    assert rendered(explicit) == rendered(shortest())


def test_an_operators_version_changes_the_rendering_and_no_config():
    run = load(shortest())
    newer = render(run, uid=UID, namespace=NAMESPACE, generation=1, settings=Settings(operator_version="0.2.0"))
    assert newer.config_hash == rendered(shortest()).config_hash
    assert newer.trainer != rendered(shortest()).trainer


def with_args(*every):
    """A manifest with an environment for each of these arguments, which alone may take 128 KiB."""
    document = shortest()
    (one,) = document["spec"]["environments"]["train"]
    document["spec"]["environments"]["train"] = [
        {**one, "name": f"e{index}", "args": args} for index, args in enumerate(every)
    ]
    return document


@pytest.mark.parametrize("args", [{"text": "x" * 120_000}, {"numbers": [1] * 40_000}], ids=["long", "many lines"])
def test_a_manifest_whose_rendering_is_too_large_is_refused(args):
    document = with_args(args, args, args, args)
    found = r"found a manifest that renders to \d{7} bytes; accepted: .* at most 1048576$"
    (key,) = args
    field = rf"spec\.environments\.train\[0\]\.args\.{key}: largest with \d+ bytes, "
    with pytest.raises(ValueError, match=rf"^{field}.*{found}"):
        rendered(document)


def test_the_largest_fields_are_named_the_largest_first():
    rules = [{"to": [{"ipBlock": {"cidr": f"10.{one}.0.0/16"}}] * 60} for one in range(60)]
    document = with_args({"a b": "x" * 130_000}, {"text": "x" * 120_000}, {"text": "x" * 110_000})
    document["spec"]["egress"] = rules
    with pytest.raises(ValueError, match="renders to") as caught:
        rendered(document)
    # Of the rules none is large alone.
    largest = r'spec\.environments\.train\[0\]\.args\["a b"\]: largest with 130002 bytes'
    assert re.match(rf"{largest}, then spec\.egress with \d{{6}} bytes, ", str(caught.value))


def test_a_key_without_end_does_not_fill_the_message():
    document = with_args(*[{"x" * 120_000: 1}] * 4)
    with pytest.raises(ValueError, match=r"^spec\.environments\.train\[0\]\.args: largest") as caught:
        rendered(document)
    assert len(str(caught.value)) < 500


def test_a_manifest_that_just_fits_has_a_revision():
    document = with_args({"text": "x" * 120_000}, {"text": "x" * 120_000})
    to_revision(rendered(document), load(document), 1, 1)


def test_a_revision_that_is_too_large_is_refused():
    large = dataclasses.replace(rendered(shortest()), spec={"text": "x" * 2**20})
    with pytest.raises(RevisionTooLarge, match=r"takes \d+ bytes, accepted are 1048576; .* field is spec.text$"):
        to_revision(large, load(shortest()), 1, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "found format None"),
        ({"format": 99}, "found format 99, accepted is 1"),
        ({"format": 1}, "has no rendering"),
        ({"format": 1, "rendering": {"run": "x"}}, "missing or unknown fields: arrows, common"),
    ],
)
def test_a_revision_of_another_kind_is_refused(data, message):
    with pytest.raises(ValueError, match=f"ControllerRevision r-1: .*{message}"):
        from_revision({"metadata": {"name": "r-1"}, "data": data})


def test_a_revision_is_of_its_own_run():
    with pytest.raises(ValueError, match="rendering of run shortest; this is run full"):
        to_revision(rendered(shortest()), load(full()), 1, 1)
