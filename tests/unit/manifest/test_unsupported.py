"""What has no machinery yet is refused with these words, by its path, and listed in the reference."""

import re

import pytest

from echorl_manifest import load, problems, refused_locally
from echorl_testing.manifests.documents import full, with_value
from echorl_testing.manifests.refused import CLUSTER_ONLY, ENV, NOT_SUPPORTED_YET, indexed, unsupported_base
from tools.manifest_page import reference


@pytest.mark.parametrize(("path", "value"), NOT_SUPPORTED_YET, ids=lambda value: str(value)[:40])
def test_refused_by_path(path, value):
    found = problems(with_value(unsupported_base(), path, value))
    assert any(
        problem.path == indexed(path) and problem.reason.startswith("not supported yet: ") for problem in found
    ), found


@pytest.mark.parametrize(("path", "value"), CLUSTER_ONLY, ids=lambda value: str(value)[:40])
def test_refused_on_one_machine_alone(path, value):
    document = with_value(unsupported_base(), path, value)
    (problem,) = problems(document, local=True)
    assert problem.path == indexed(path)
    assert problem.reason.startswith("not supported yet: ")
    assert problems(document) == []
    assert refused_locally(load(document).spec) == [indexed(path)]


@pytest.mark.parametrize(("path", "value"), NOT_SUPPORTED_YET, ids=lambda value: str(value)[:40])
def test_what_nothing_carries_out_is_refused_on_one_machine_too(path, value):
    document = with_value(unsupported_base(), path, value)
    assert set(problems(document)) <= set(problems(document, local=True))


@pytest.mark.parametrize("path", sorted({path for path, _ in CLUSTER_ONLY}))
def test_reference_lists_what_only_a_cluster_does(path):
    listed = reference().partition("Works in a cluster")[2].partition("## ")[0]
    assert f"`{re.sub(r'environments.train.0', 'environments.*[]', path)}`" in listed


@pytest.mark.parametrize("path", sorted({path for path, _ in NOT_SUPPORTED_YET}))
def test_reference_lists_it(path):
    listed = reference().partition("Refused with")[2].partition("Works in")[0]
    assert path.split(".")[-1] in listed or path.split(".")[-2] in listed


def test_what_is_refused_does_not_hide_the_rest():
    document = with_value(full(), "spec.algorithm.advantage", {"type": "rae"})
    document = with_value(document, "spec.algorithm.batchSize", 9)
    paths = {problem.path for problem in problems(document)}
    assert {"spec.algorithm.advantage.type", "spec.algorithm.batchSize"} <= paths


def test_empty_blocks_of_later_features_are_no_demand():
    document = with_value(unsupported_base(), "spec.algorithm.teacher", {"url": None})
    document = with_value(document, f"{ENV}.algorithm", {})
    document = with_value(document, f"{ENV}.members", {})
    assert problems(document) == []
