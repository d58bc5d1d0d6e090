"""All problems at once, each with path, what was found, what is accepted, and the nearest word."""

import datetime
import math

import pytest

from echorl_manifest import InvalidRun, Problem, load, problems
from echorl_testing.manifests.documents import full, shortest, with_value


def test_field_errors_and_rules_are_told_together():
    document = full()
    for path, value in (
        ("spec.maxSteps", "many"),
        ("spec.algorithm.batch_size", 8),
        ("spec.algorithm.batchSize", 65),
        ("spec.environments.train.0.weight", -1),
        ("spec.environments.train.0.echo.tool.alpha", math.nan),
        ("spec.environments.train.1", {"type": "import:a:b", "sampling": {"topP": 0.5}}),
        ("spec.environments.eval.0.name", "all"),
        ("spec.weightTransfer.mode", "nixl"),
    ):
        document = with_value(document, path, value)
    assert {problem.path for problem in problems(document)} == {
        "spec.maxSteps",
        "spec.algorithm.batch_size",
        "spec.algorithm.batchSize",
        "spec.environments.train[0].weight",
        "spec.environments.train[0].echo.tool.alpha",
        "spec.environments.train[1].name",
        "spec.environments.train[1].sampling.topP",
        "spec.environments.eval[0].name",
        "spec.weightTransfer.mode",
    }


def test_a_wrong_value_causes_no_follow_up_problem():
    document = with_value(full(), "spec.algorithm.groupSize", "8")
    document = with_value(document, "spec.algorithm.batchSize", 65)
    assert [problem.path for problem in problems(document)] == ["spec.algorithm.groupSize"]


@pytest.mark.parametrize(
    ("path", "value", "meant"),
    [
        ("spec.algorithm.loss.type", "dpo", "did you mean dppo?"),
        ("spec.algorithm.echo.normalizer", "global_tokens", "did you mean globalTokens?"),
        ("spec.algoritm", {}, "did you mean algorithm?"),
        ("spec.algorithm.max_staleness", 1, "did you mean maxStaleness?"),
        ("spec.environments.train.0.echo.tol", {"alpha": 1}, "did you mean tool?"),
        ("spec.environments.train.0.type", "builtin:digit", "did you mean builtin:digits?"),
        ("spec.weightTransfer.mode", "HTTP", "did you mean http?"),
    ],
)
def test_misspelt_words_get_a_suggestion(path, value, meant):
    (problem,) = problems(with_value(full(), path, value))
    assert meant in problem.reason


def test_unknown_key_lists_the_known_ones():
    (problem,) = problems(with_value(full(), "spec.checkpoint.zzz", 1))
    assert str(problem) == (
        'spec.checkpoint.zzz: unknown key; found "zzz"; '
        "accepted: the keys interval, keepLast, keepEvery, asyncSave, weightsOnlyEvery, weightsOnlyKeepLast, memory"
    )


def test_one_line_says_it_all():
    (problem,) = problems(with_value(full(), "spec.algorithm.batchSize", 65))
    assert str(problem) == "spec.algorithm.batchSize: found 65; accepted: a multiple of groupSize (8)"


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf, -0.1, "0.1"])
def test_alpha_is_a_finite_number(alpha):
    (problem,) = problems(with_value(full(), "spec.environments.train.0.echo.tool.alpha", alpha))
    assert problem.path == "spec.environments.train[0].echo.tool.alpha"
    assert "finite number, at least 0" in problem.accepted


def test_tool_names_are_not_empty():
    (problem,) = problems(with_value(full(), "spec.environments.train.0.echo.tool.toolNames", []))
    assert (problem.path, problem.found) == ("spec.environments.train[0].echo.tool.toolNames", "an empty list")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"a": [1, math.nan]}, "nan at .a[1]"),
        ({"a": datetime.date(2024, 1, 1)}, "a date at .a"),
        ({"a": {1: 2}}, "the key 1 at .a"),
    ],
)
def test_free_form_values_are_json(value, found):
    (problem,) = problems(with_value(full(), "spec.environments.train.0.args", value))
    assert (problem.path, problem.found) == ("spec.environments.train[0].args", found)


def test_values_that_contain_themselves_are_a_problem():
    loop: dict[str, object] = {}
    loop["again"] = loop
    assert problems(with_value(full(), "spec.environments.train.0.args", loop))
    assert problems(loop)
    document = shortest()
    document["spec"]["algorithm"] = document
    assert problems(document)


@pytest.mark.parametrize("document", [None, 3, "text", [], [1], True, math.nan])
def test_documents_that_are_no_mapping(document):
    (problem,) = problems(document)
    assert problem.path == "manifest"


def test_empty_document_lacks_everything():
    assert {problem.path for problem in problems({})} >= {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.parametrize(
    ("path", "value", "accepted"),
    [("apiVersion", "echorl.dev/v1", "echorl.dev/v1alpha1"), ("kind", "EchoRun", "EchoRLRun")],
)
def test_other_kinds_of_documents(path, value, accepted):
    (problem,) = problems(with_value(full(), path, value))
    assert (problem.path, problem.accepted) == (path, accepted)


def test_load_raises_all_problems():
    document = with_value(with_value(full(), "spec.maxSteps", -1), "spec.seed", "x")
    with pytest.raises(InvalidRun) as caught:
        load(document)
    assert caught.value.problems == tuple(problems(document))
    assert all(isinstance(problem, Problem) for problem in caught.value.problems)


def test_validation_leaves_the_document_alone():
    document = with_value(full(), "spec.maxSteps", "x")
    problems(document)
    assert document == with_value(full(), "spec.maxSteps", "x")
