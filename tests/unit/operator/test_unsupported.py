"""What has no machinery yet is refused with these words, by its path, and listed in the reference."""

import pytest

from echorl_operator.api import problems
from echorl_operator.api.reference import reference
from echorl_testing.manifests import full, shortest, with_value

TRAIN = "spec.environments.train.0"
EVAL = {"name": "held-out", "type": "builtin:digits"}

CASES = [
    ("spec.algorithm.mode", "sft"),
    ("spec.algorithm.mode", "opd"),
    ("spec.algorithm.teacher.url", "http://teacher"),
    ("spec.algorithm.loss.type", "custom"),
    ("spec.algorithm.advantage.type", "rae"),
    ("spec.algorithm.advantage.type", "maxRl"),
    ("spec.algorithm.advantage.type", "custom"),
    ("spec.algorithm.filters.0.type", "gibberish"),
    ("spec.algorithm.filters.0.type", "repetition"),
    ("spec.algorithm.filters.0.type", "custom"),
    ("spec.model.lora", {}),
    ("spec.model.tokenSecretName", "hub"),
    ("spec.model.revision", "v2"),
    (f"{TRAIN}.type", "openenv:echo"),
    (f"{TRAIN}.type", "verifiers:owner/env"),
    (f"{TRAIN}.type", "agent:coder"),
    (f"{TRAIN}.members", {"judge": {"policy": "base"}}),
    (f"{TRAIN}.dropMembers", ["judge"]),
    (f"{TRAIN}.algorithm.groupSize", 4),
    (f"{TRAIN}.algorithm.loss", {"klTau": 0.1}),
    ("spec.environments.eval.0.sampling.frequencyPenalty", 0.5),
    ("spec.trainer.parallel.context", 2),
    ("spec.trainer.optimizer.type", "muon"),
    ("spec.trainer.optimizer.type", "signSgd"),
    ("spec.weightTransfer.mode", "nccl"),
    ("spec.tokenExport.enabled", True),
    ("spec.monitors.wandb.project", "runs"),
    ("spec.monitors.wandb.secretName", "key"),
    ("spec.checkpoint.weightsOnlyEvery", 10),
    ("spec.suspend", True),
    ("spec.stallPolicy.action", "Fail"),
    ("spec.failurePolicy.rules", [{"role": "trainer", "exitCodes": [3], "action": "Fail"}]),
    ("spec.code.configMap", "code"),
]


def base():
    document = with_value(shortest(), "spec.algorithm.filters", [{"type": "zeroAdvantage"}])
    return with_value(document, "spec.environments.eval", [EVAL])


@pytest.mark.parametrize(("path", "value"), CASES, ids=lambda value: str(value)[:40])
def test_refused_by_path(path, value):
    found = problems(with_value(base(), path, value))
    expected = path.replace("train.0", "train[0]").replace("eval.0", "eval[0]").replace("filters.0", "filters[0]")
    assert any(problem.path == expected and problem.reason.startswith("not supported yet: ") for problem in found), (
        found
    )


@pytest.mark.parametrize("path", sorted({path for path, _ in CASES}))
def test_reference_lists_it(path):
    listed = reference().partition("Refused with")[2].partition("## ")[0]
    assert path.split(".")[-1] in listed or path.split(".")[-2] in listed or "penalties" in listed


def test_what_is_refused_does_not_hide_the_rest():
    document = with_value(full(), "spec.algorithm.mode", "opd")
    document = with_value(document, "spec.algorithm.batchSize", 9)
    paths = {problem.path for problem in problems(document)}
    assert {"spec.algorithm.mode", "spec.algorithm.batchSize", "spec.environments.train[0].echo"} <= paths


def test_empty_blocks_of_later_features_are_no_demand():
    document = with_value(base(), "spec.algorithm.teacher", {"url": None})
    document = with_value(document, f"{TRAIN}.algorithm", {})
    document = with_value(document, f"{TRAIN}.members", {})
    assert problems(document) == []
