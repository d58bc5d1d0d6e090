"""What a scrape tells, and that nothing is told that is not declared."""

import re

import pytest
from prometheus_client import generate_latest

from echorl_core.names import ExitCode
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.failures import RunFailure
from echorl_orchestrator.metrics.families import AT_UPDATES, FAMILIES, PREFIX
from echorl_orchestrator.metrics.process_counters import DECLARED
from echorl_orchestrator.rollout.counters import Counters, Drop
from echorl_orchestrator.status.metrics_registry import Metrics, Reading
from echorl_orchestrator.status.scrape import counts, evals, learning
from echorl_orchestrator.status.volume import Volume
from echorl_testing.orchestrator.scripted_player import outcome

ROW = {
    "step": 3,
    "reward/all/mean": 0.5,
    "reward/all/std": 0.25,
    "reward/digits/mean": None,
    "solved/all/none": 0.125,
    "filters/all/is_filtered": 0.5,
    "filters/digits/mine:poor": 0.25,
    "metrics/all/mean": 9.0,
    "env_nll/all": 1.5,
    "echo_nll/terminal": 2.5,
    "entropy/all": 4.0,
    "mismatch_kl/all": 0.01,
    "is_masked/all": 0.0,
    "is_masked_low": 0.0,
    "echo_tokens": 25.0,
    "tokens/trained": 100,
    "staleness/all/max": 2,
    "staleness/all/mean": 0.75,
    "gap/max_abs": 1e-6,
    "batch/rl_share": 0.75,
}


def test_a_steps_record_is_told_by_environment() -> None:
    found = learning(ROW)
    assert found["reward"] == {("all",): 0.5, ("digits",): None}
    assert found["reward_std"] == {("all",): 0.25}
    assert found["solved_ratio"] == {("all", "none"): 0.125}
    assert found["filtered_ratio"] == {("all", "is_filtered"): 0.5, ("digits", "mine:poor"): 0.25}
    assert found["env_nll_nats"] == {("all",): 1.5}
    assert found["echo_nll_nats"] == {("terminal",): 2.5}
    assert found["masked_ratio"] == {("all",): 0.0}
    assert found["echo_tokens_ratio"] == {(): 0.25}
    assert found["staleness_max_versions"] == {(): 2}
    assert found["rl_episodes_ratio"] == {(): 0.75}


def test_before_the_first_step_there_is_nothing_to_tell() -> None:
    assert not any(value is not None for series in learning({}).values() for value in series.values())


def test_an_eval_is_told_by_environment() -> None:
    found = evals(
        {"held-out": {"reward": 0.5, "pass@1": 0.5, "pass@4": 1.0, "pass@4/examples": 3, "env_nll": 2.0, "step": 8}}
    )
    assert found["eval_reward"] == {("held-out",): 0.5}
    assert found["eval_pass_ratio"] == {("held-out", "1"): 0.5, ("held-out", "4"): 1.0}
    assert found["eval_step"] == {("held-out",): 8}


def test_counters_begin_at_0_in_each_process_though_totals_go_on() -> None:
    counters = Counters({"dropped/stale": 7, "tokens/sampled": 100})
    counters.drop(Drop.STALE, [outcome("a1-g000001-e0")])
    found = counts(counters.counted())
    assert found["episodes_dropped"][("stale",)] == 1
    assert found["episodes_dropped"][("unused",)] == 0
    assert found["sampled_tokens"] == {(): 0}
    assert counters.totals["dropped/stale"] == 8


def test_names_are_of_one_scheme_and_stand_once() -> None:
    declared = [*FAMILIES, *AT_UPDATES, *DECLARED]
    names = [one.name for one in declared]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(rf"{PREFIX}_[a-z_]+", name) for name in names)
    assert all(name.endswith("_total") == (one.type == "counter") for one, name in zip(declared, names, strict=True))
    assert all(one.text.endswith(".") for one in declared)
    assert not {label for one in declared for label in one.labels} & {"episode", "task", "run", "request"}


def test_a_family_that_is_not_declared_is_not_shown_by_mistake() -> None:
    metrics = Metrics(lambda: Reading({"surprise": {(): 1}}))
    with pytest.raises(KeyError, match="surprise"):
        generate_latest(metrics.registry)


def test_the_volume_is_measured_and_a_run_directory_that_is_gone_ends_the_role(tmp_path) -> None:
    (tmp_path / "run.json").touch()
    volume = Volume(RunDirectory(tmp_path))
    volume.look()
    assert volume.size_bytes
    assert volume.free_bytes is not None
    assert 0 <= volume.free_bytes <= volume.size_bytes
    (tmp_path / "run.json").unlink()
    with pytest.raises(RunFailure, match=r"the run directory is gone: .*run\.json is missing") as caught:
        volume.look()
    assert caught.value.code is ExitCode.CRASH
