"""Rules across fields: each is broken alone in a manifest that is valid otherwise."""

import pytest

from echorl_manifest import load, problems
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.manifests.refused import BROKEN_RULES, ENV
from echorl_testing.manifests.refused_rules import REFUSED_RULES


@pytest.mark.parametrize("case", [*BROKEN_RULES, *REFUSED_RULES], ids=lambda case: case.id)
def test_broken_rule_names_field_and_what_is_accepted(case):
    found = problems(case.document())
    assert case.path in [problem.path for problem in found]
    assert any(case.accepted in problem.accepted for problem in found if problem.path == case.path), found


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


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a.b", "ä", "a\n", "7b-grpo"])
def test_bad_run_names(name):
    assert [problem.path for problem in problems(with_value(shortest(), "metadata.name", name))] == ["metadata.name"]
