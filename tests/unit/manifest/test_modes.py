"""What the modes and the algorithm of one environment mean to the roles."""

import pytest

from echorl_manifest import load, problems
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs
from echorl_manifest.rules.modes import num_engines
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.manifests.refused import ENV, EVAL, OPD, SFT


def changed(document, changes):
    for path, value in changes:
        document = with_value(document, path, value)
    return document


def configs(document):
    run = load(document)
    return role_configs(run, example_placement(run))


@pytest.mark.parametrize("changes", [SFT, OPD], ids=["sft", "opd"])
def test_the_manifests_that_rules_are_broken_in_are_valid(changes):
    assert problems(changed(full(), changes)) == []


def test_sft_without_evals_starts_no_engine_and_looks_for_none():
    document = changed(shortest(), SFT)
    found = configs(document)
    assert found.inference == []
    assert found.orchestrator.engines.names == []
    assert num_engines(load(with_value(document, "spec.inference.replicas", 0)).spec) == 0


def test_sft_with_evals_has_engines():
    document = changed(shortest(), [*SFT, ("spec.environments.eval", [EVAL])])
    assert len(configs(document).inference) == 1


def test_sft_has_groups_of_one_and_no_filter_that_asks_for_advantages():
    batch = configs(changed(shortest(), SFT)).orchestrator.batch
    assert (batch.mode, batch.group_size, batch.batch_size, batch.filters) == ("sft", 1, 16, [])
    assert (batch.sft.train_roles, batch.sft.tool_names) == (["assistant"], None)


def test_an_environment_of_given_conversations_has_no_groups_of_its_own_either():
    (problem,) = problems(changed(full(), [*SFT, (f"{ENV}.algorithm", {"groupSize": 4})]))
    assert problem.path == "spec.environments.train[0].algorithm.groupSize"
    assert problem.accepted == "1"
    assert problems(changed(full(), [*SFT, (f"{ENV}.algorithm", {"groupSize": 1})])) == []


def test_a_filter_of_sft_takes_the_whole_episode():
    own = {"type": "custom", "import": "a:b", "stage": "group"}
    [rule] = configs(changed(shortest(), [*SFT, ("spec.algorithm.filters", [own])])).orchestrator.batch.filters
    assert (rule.stage, rule.scope) == ("group", "all")


def test_sft_roles_and_tools_arrive():
    sft = {"trainRoles": ["assistant", "tool"], "toolNames": ["grep"]}
    batch = configs(changed(shortest(), [*SFT, ("spec.algorithm.sft", sft)])).orchestrator.batch
    assert (batch.sft.train_roles, batch.sft.tool_names) == (["assistant", "tool"], ["grep"])


@pytest.mark.parametrize(("changes", "mode"), [((), "rl"), (SFT, "sft"), (OPD, "opd")])
def test_the_trainer_is_told_the_mode(changes, mode):
    assert configs(changed(shortest(), changes)).trainer.mode == mode


def test_opd_has_a_teacher_and_a_loss_of_its_own():
    found = configs(changed(shortest(), [*OPD, ("spec.algorithm.loss", {"maskLow": 0.1, "aggregation": "episode"})]))
    teacher = found.orchestrator.teacher
    assert teacher is not None
    assert (teacher.url, teacher.model) == ("http://teacher:8000/v1", "big")
    assert (found.trainer.loss.type, found.trainer.loss.mask_low, found.trainer.loss.kl_tau) == ("opd", 0.1, 0.001)
    assert found.orchestrator.batch.aggregation == "episode"
    assert found.orchestrator.batch.filters == []


def test_an_environment_has_an_algorithm_of_its_own():
    own = {
        "groupSize": 4,
        "rlWeight": 0.5,
        "advantage": {"type": "maxRl"},
        "filters": [{"type": "repetition"}],
        "loss": {"type": "grpo", "clipHigh": 0.3},
    }
    document = with_value(full(), f"{ENV}.algorithm", own)
    found = configs(document)
    first, second = (found.orchestrator.batch.of(one) for one in found.orchestrator.train)
    assert (first.group_size, first.rl_weight, first.advantage.type) == (4, 0.5, "maxRl")
    assert [rule.type for rule in first.filters] == ["repetition"]
    assert second == found.orchestrator.batch
    assert list(found.trainer.losses) == ["terminal"]
    loss = found.trainer.losses["terminal"]
    assert (loss.type, loss.clip_low, loss.clip_high) == ("grpo", 0.2, 0.3)
    assert found.trainer.loss.type == "dppo"
