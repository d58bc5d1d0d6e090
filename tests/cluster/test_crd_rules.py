"""Every rule of the CRD against a real API server: what ``echorl validate`` refuses is refused, at the same field."""

import copy
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echorl_cli.yaml_text import parse_yaml
from echorl_manifest import EchoRLRun, problems
from echorl_manifest.schema import bare, inside
from echorl_testing.cluster.api import ApiError
from echorl_testing.kube.run_objects import Runs, causes, install_crd
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.manifests.refused import (
    BROKEN_RULES,
    CLUSTER_ONLY,
    ENV,
    NOT_SUPPORTED_YET,
    indexed,
    unsupported_base,
)
from echorl_testing.manifests.refused_rules import REFUSED_RULES

EVAL = "spec.environments.eval.0"
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.fixture(scope="module")
def runs(api):
    install_crd(api)
    return Runs(api, "default")


def refusal(runs, document):
    """The causes that the API server gives."""
    with pytest.raises(ApiError) as caught:
        runs.tried(document)
    assert caught.value.reason == "Invalid", caught.value
    return causes(caught.value)


def assert_refused(runs, document, path, words):
    found = refusal(runs, document)
    assert any(cause.field == path and words in cause.message for cause in found), found


@pytest.mark.parametrize("document", [shortest(), full(), unsupported_base()], ids=["shortest", "full", "with an eval"])
def test_valid_manifests(runs, document):
    assert runs.tried(document)["spec"]["model"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples(runs, file):
    assert runs.tried(parse_yaml(file.read_text()))


@pytest.mark.parametrize("case", [*BROKEN_RULES, *REFUSED_RULES], ids=lambda case: case.id)
def test_rules_between_fields(runs, case):
    assert_refused(runs, case.document(), case.server_path or case.path, case.server_says or case.accepted)


@pytest.mark.parametrize(("path", "value"), NOT_SUPPORTED_YET, ids=lambda value: str(value)[:40])
def test_what_nothing_carries_out_yet(runs, path, value):
    document = with_value(unsupported_base(), path, value)
    (problem,) = [one for one in problems(document) if one.path == indexed(path) and "not supported" in one.reason]
    assert_refused(runs, document, indexed(path), problem.reason)


@pytest.mark.parametrize(("path", "value"), CLUSTER_ONLY, ids=lambda value: str(value)[:40])
def test_what_only_a_cluster_does(runs, path, value):
    assert runs.tried(with_value(unsupported_base(), path, value))


OUT_OF_RANGE = [
    (f"{ENV}.workers", 0, "accepted: auto, or a whole number from 1 to 1024"),
    (f"{ENV}.workers", 1025, "accepted: auto, or a whole number from 1 to 1024"),
    (f"{ENV}.workers", "many", "found many"),
    ("spec.trainer.parallel.fsdp", 0, "accepted: auto, or a whole number of at least 1"),
    ("spec.trainer.parallel.fsdp", "all", "accepted: auto"),
    ("spec.stallPolicy.noStepFor", "10", 'found "10"; accepted: a duration such as 30s, 10m or 1h30m'),
    ("spec.stallPolicy.noStepFor", "0s", "accepted: a duration"),
    ("spec.stallPolicy.noStepFor", "1d", "accepted: a duration"),
    ("spec.stallPolicy.noStepFor", "1h1h", "accepted: a duration"),
    ("spec.stallPolicy.noStepFor", "", "at least 2 chars long"),
    (f"{ENV}.episodeTimeout", "10 m", "accepted: a duration"),
    ("spec.storage.size", "0Gi", "accepted: a Kubernetes quantity above 0"),
    ("spec.storage.size", "500 Gi", 'found "500 Gi"'),
    ("spec.storage.size", "-1Gi", "accepted: a Kubernetes quantity"),
    ("spec.storage.storageClassName", "Fast", "accepted: the name of a Kubernetes object"),
    ("spec.imagePullSecrets.0.name", "a_b", "accepted: the name of a Kubernetes object"),
    (f"{ENV}.name", "A_b", "accepted: at most 63 lower-case letters"),
    (f"{ENV}.name", "a" * 64, "may not be more than 63"),
    (
        f"{ENV}.type",
        "terminal",
        "accepted: builtin:<name>, verifiers:<id>, openenv:http://<host>:<port>, openenv:<registry>/<image>, "
        "nemo-gym:http://<host>:<port> or import:<pkg.module:factory>",
    ),
    (f"{ENV}.echo.filter.import", "no-path", "accepted: an import path such as 'pkg.module:name'"),
    ("spec.model.renderer", "-x", 'supported values: "auto", "engine", "compact"'),
    ("spec.trainer.image", "a b;c", "accepted: a container image"),
    ("spec.weightTransfer.mode", "htpp", 'supported values: "http", "disk", "nccl", "auto"'),
    ("spec.storage.accessMode", "ReadWriteOncePod", "supported values"),
    ("spec.maxSteps", -1, "greater than or equal to 0"),
    (f"{ENV}.echo.tool.alpha", -0.1, "greater than or equal to 0"),
    (f"{ENV}.echo.tool.toolNames", [], "at least 1 items"),
    (f"{ENV}.weight", 0, "greater than 0"),
    ("spec.trainer.optimizer.betas", [0.9, 1.0], "less than 1"),
    ("spec.trainer.optimizer.lr", 0, "greater than 0"),
    ("spec.inference.replicas", 0, "accepted: at least 1"),
    ("spec.inference.autoscale.min", 0, "greater than or equal to 1"),
    (f"{EVAL}.groupSize", 5000, "less than or equal to 4096"),
]


@pytest.mark.parametrize(("path", "value", "words"), OUT_OF_RANGE, ids=lambda value: str(value)[:40])
def test_values_out_of_range(runs, path, value, words):
    document = with_value(full(), path, value)
    expected = indexed(path)
    assert any(problem.path.startswith(expected) for problem in problems(document))
    found = refusal(runs, document)
    assert any(cause.field.startswith(expected) and words in cause.message for cause in found), found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{ENV}.workers", 1),
        (f"{ENV}.workers", 1024),
        (f"{ENV}.workers", "auto"),
        (f"{ENV}.name", "a" * 63),
        (f"{ENV}.episodeTimeout", "1.5h"),
        (f"{ENV}.episodeTimeout", "1ns"),
        (f"{ENV}.echo", None),
        (f"{ENV}.echo", {"user": {"alpha": 0}}),
        ("metadata.name", "a" * 40),
        ("spec.storage.size", "0.5Ti"),
        ("spec.trainer.parallel", {"fsdp": 8}),
        ("spec.trainer.parallel", {"fsdp": "auto", "replicate": 4}),
        ("spec.trainer.seqLen", 16384),
        ("spec.inference.extraArgs", ["--models", "--tp", "--hosts=1", "--max-num-seqs", "8", "-1", "-.5", "-"]),
        ("spec.inference.extraArgs", ["--no-enable-prefix-caching", "--gpu-memory-utilization=0.8"]),
        ("spec.inference.tensorParallel", None),
        ("spec.algorithm.batchSize", 8),
        ("spec.algorithm", {"tokenBatchSize": 4096}),
        ("spec.resume", {"policy": "Never", "onExisting": "Archive"}),
        ("spec.checkpoint.keepEvery", 25),
        ("spec.storage", {"claimName": "c", "accessMode": "ReadWriteMany"}),
        ("spec.trainer.optimizer.lr", 1),
        ("spec.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, {}]),
        ("spec.trainer.template", {"spec": {"anything": [1, None, {"deep": True}]}}),
        ("spec.code", {"configMap": "code"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_at_the_edge(runs, path, value):
    document = with_value(full(), path, value)
    assert problems(document) == []
    assert runs.tried(document)


def test_at_most_64_environments_of_a_kind(runs):
    environments = [{"name": f"e{index}", "type": "builtin:digits"} for index in range(65)]
    document = with_value(full(), "spec.environments.train", environments)
    assert_refused(runs, document, "spec.environments.train", "must have at most 64 items")
    assert runs.tried(with_value(document, "spec.environments.train", environments[:64]))


def test_the_largest_manifest_is_within_the_budget_of_rules(runs):
    """Every environment has everything that rules look at."""
    document = full()
    train, evaluated = document["spec"]["environments"]["train"][0], document["spec"]["environments"]["eval"][0]
    for kind, environment in (("train", train), ("eval", evaluated)):
        items = [{**copy.deepcopy(environment), "name": f"{kind}-{index}" + "x" * 52} for index in range(64)]
        document = with_value(document, f"spec.environments.{kind}", items)
    assert runs.tried(document)


def test_all_problems_are_told_at_once(runs):
    document = with_value(with_value(full(), "spec.maxSteps", -1), "spec.algorithm.batchSize", 65)
    fields = {cause.field for cause in refusal(runs, document)}
    assert {"spec.maxSteps", "spec.algorithm.batchSize"} <= fields


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("spec.maxStep", "spec.maxStep"),
        (f"{ENV}.echo.tol", "spec.environments.train[0].echo.tol"),
        ("spec.model.x", "x"),
    ],
)
def test_unknown_keys_are_refused(runs, path, word):
    with pytest.raises(ApiError, match="strict decoding error") as caught:
        runs.tried(with_value(full(), path, 1))
    assert f'unknown field "{word}"' in str(caught.value) or f".{word}" in str(caught.value)


@pytest.mark.parametrize("alpha", [math.nan, math.inf])
def test_numbers_that_are_none_are_no_json(runs, alpha):
    with pytest.raises(ApiError) as caught:
        runs.tried(with_value(full(), f"{ENV}.echo.tool.alpha", alpha))
    assert caught.value.code == 400


def places(value, annotation=EchoRLRun, location=()):
    """Every location of a manifest below spec that a type is known for."""
    if location[:1] in {("metadata",), ("status",), ("apiVersion",), ("kind",)} or bare(annotation) is None:
        return
    if len(location) > 1:
        yield location
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        deeper = inside(annotation, key)
        if deeper is not None and "Any" not in str(bare(deeper)):
            yield from places(item, deeper, (*location, key))


PLACES = list(places(full()))
VALUES = st.sampled_from([None, 0, 1, 2, 3, -1, 0.5, 10**9, True, False, "", "auto", "10m", "all", "x", [], {}, ["x"]])


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=2))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_api_server_and_validate_agree(runs, changes):
    document = full()
    for location, value in changes:
        parent = document
        try:
            for segment in location[:-1]:
                parent = parent[segment]
            parent[location[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            return  # an earlier change took the place away
    wrong = [one for one in problems(document) if not one.path.endswith("kwargs")]
    refused = ""
    try:
        runs.tried(document)
    except ApiError as error:
        refused = str(error)
    assert bool(wrong) == bool(refused), (changes, wrong, refused)
