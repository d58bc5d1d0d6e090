"""Rules across fields: each is broken alone in a manifest that is valid otherwise."""

import re

import pytest

from echorl_operator.api import load, problems
from echorl_operator.api.rules import BUILTIN_ENVIRONMENTS
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.refusals import BadInputError
from echorl_testing.manifests import full, shortest, with_value

ENV = "spec.environments.train.0"


def changed(*changes):
    document = full()
    for path, value in changes:
        document = with_value(document, path, value)
    return document


CASES = [
    pytest.param([("spec.algorithm.batchSize", 65)], "spec.algorithm.batchSize", "groupSize (8)", id="not a multiple"),
    pytest.param(
        [("spec.algorithm.tokenBatchSize", 4096)],
        "spec.algorithm.tokenBatchSize",
        "exactly one of batchSize and tokenBatchSize",
        id="both batch sizes",
    ),
    pytest.param(
        [("spec.environments.train", [])], "spec.environments.train", "at least one", id="no train environment"
    ),
    pytest.param([(f"{ENV}.name", "own")], "spec.environments.train[1].name", "of its own", id="duplicate train name"),
    pytest.param([(f"{ENV}.name", "all")], "spec.environments.train[0].name", "other name", id="reserved name"),
    pytest.param(
        [("spec.environments.eval.0.name", "terminal")],
        "spec.environments.eval[0].name",
        "of its own",
        id="eval as train",
    ),
    pytest.param(
        [(f"{ENV}.type", "builtin:terminl")],
        "spec.environments.train[0].type",
        "builtin:digits, builtin:terminal",
        id="unknown built-in",
    ),
    pytest.param(
        [(f"{ENV}.echo", {"filter": {"import": "a:b"}})],
        "spec.environments.train[0].echo",
        "at least one of system, user",
        id="echo without role",
    ),
    pytest.param(
        [("spec.model.renderer", "engine")], "spec.environments.train[0].echo", "no echo", id="echo, engine renders"
    ),
    pytest.param(
        [(f"{ENV}.sampling.temperature", 0)], "spec.environments.train[0].sampling.temperature", "above 0", id="greedy"
    ),
    pytest.param([(f"{ENV}.sampling.topP", 0.9)], "spec.environments.train[0].sampling.topP", "eval", id="topP"),
    pytest.param([(f"{ENV}.sampling.topK", 5)], "spec.environments.train[0].sampling.topK", "eval", id="topK"),
    pytest.param(
        [(f"{ENV}.sampling.presencePenalty", 0.5)],
        "spec.environments.train[0].sampling.presencePenalty",
        "eval",
        id="penalty",
    ),
    pytest.param([("spec.trainer.seqLen", 16383)], "spec.trainer.seqLen", "16384", id="seqLen below maxModelLen"),
    pytest.param([("spec.trainer.parallel.fsdp", 2)], "spec.trainer.parallel.fsdp", "auto", id="fsdp x replicate"),
    pytest.param(
        [("spec.trainer.parallel", {"replicate": 3})],
        "spec.trainer.parallel.replicate",
        "divisor of the 8",
        id="replicate",
    ),
    pytest.param(
        [("spec.inference.tensorParallel", 4)], "spec.inference.tensorParallel", "at most 2", id="tensorParallel"
    ),
    pytest.param(
        [("spec.inference.extraArgs", ["--model=x"])], "spec.inference.extraArgs[0]", "other", id="own argument"
    ),
    pytest.param(
        [("spec.inference.extraArgs", ["-q", "--logprobs_mode", "raw_logprobs"])],
        "spec.inference.extraArgs[1]",
        "other",
        id="own argument, underscores",
    ),
    pytest.param(
        [("spec.resume", {"policy": "FromStep"})], "spec.resume.step", "step of a", id="FromStep without step"
    ),
    pytest.param([("spec.resume", {"step": 3})], "spec.resume.step", "no value", id="step without FromStep"),
    pytest.param(
        [("spec.resume", {"onExisting": "Archive"})], "spec.resume.onExisting", "Refuse", id="Archive, not Never"
    ),
    pytest.param([("spec.checkpoint.keepEvery", 30)], "spec.checkpoint.keepEvery", "interval (25)", id="keepEvery"),
    pytest.param([("spec.storage.claimName", "c")], "spec.storage.size", "no value", id="size of a claim that exists"),
    pytest.param(
        [("spec.storage.accessMode", "ReadWriteOnce")],
        "spec.storage.accessMode",
        "ReadWriteMany",
        id="one node, 2 replicas",
    ),
    pytest.param(
        [("spec.algorithm.loss.import", "a:b")], "spec.algorithm.loss.import", "no value", id="import of dppo"
    ),
    pytest.param(
        [("spec.algorithm.advantage.momentum", 0.9)], "spec.algorithm.advantage.momentum", "no value", id="momentum"
    ),
    pytest.param([("spec.algorithm.sft", {})], "spec.algorithm.sft", "no value", id="sft block of mode rl"),
    pytest.param(
        [("spec.model.name", "/models/x"), ("spec.model.revision", "v2")],
        "spec.model.revision",
        "no value",
        id="revision of a path",
    ),
]


@pytest.mark.parametrize(("changes", "path", "accepted"), CASES)
def test_broken_rule_names_field_and_what_is_accepted(changes, path, accepted):
    found = problems(changed(*changes))
    assert path in [problem.path for problem in found]
    assert any(accepted in problem.accepted for problem in found if problem.path == path), found


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("spec.algorithm.mode", "sft")], id="sft"),
        pytest.param([("spec.algorithm.mode", "opd")], id="opd"),
        pytest.param([("spec.algorithm.loss", {"type": "custom", "import": "a:b"})], id="custom loss"),
    ],
)
def test_echo_is_refused_where_the_objective_has_no_place_for_it(changes):
    assert any(problem.path == "spec.environments.train[0].echo" for problem in problems(changed(*changes)))


def test_eval_environments_may_sample_greedily():
    assert load(full()).spec.environments.eval[0].sampling.temperature == 0


def test_batch_size_follows_group_size_when_neither_is_set():
    document = with_value(shortest(), "spec.algorithm.groupSize", 24)
    assert problems(document) == []


def test_seq_len_alone_lowers_the_default_length():
    assert problems(with_value(shortest(), "spec.trainer.seqLen", 512)) == []


@pytest.mark.parametrize("length", [40, 41])
def test_run_names_have_at_most_40_characters(length):
    found = problems(with_value(shortest(), "metadata.name", "a" * length))
    assert [problem.path for problem in found] == (["metadata.name"] if length > 40 else [])


@pytest.mark.parametrize("length", [63, 64])
def test_environment_names_have_at_most_63_characters(length):
    found = problems(with_value(shortest(), f"{ENV}.name", "a" * length))
    assert [problem.path for problem in found] == (["spec.environments.train[0].name"] if length > 63 else [])


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "ä", "a\n"])
def test_bad_run_names(name):
    assert [problem.path for problem in problems(with_value(shortest(), "metadata.name", name))] == ["metadata.name"]


def test_built_in_environments_are_those_that_the_orchestrator_loads():
    with pytest.raises(BadInputError) as caught:
        load_environment("x", "builtin:", {})
    assert set(re.findall(r"'builtin:(\w+)'", str(caught.value))) == set(BUILTIN_ENVIRONMENTS)
