"""Exported tokens agree with the step's metrics, change nothing of it, are bounded, and never stop it."""

import math
from statistics import fmean

import msgspec
import numpy as np
import pytest
import torch

from echorl_core.config import LossConfig, OptimizerConfig
from echorl_core.rundir import RunDirectory
from echorl_core.tokens import read_trained
from echorl_core.wire.batch import TokenRole
from echorl_testing.orchestrator.packs import denominators, document, joined, learner, rank_batch
from echorl_trainer.token_export import TokenExport, tokenizer_of

DOCUMENTS = [document(seed, length, version=1) for seed, length in enumerate([9, 14, 5, 20], start=1)]
TOTALS = denominators(DOCUMENTS)
STILL = OptimizerConfig(type="sgd", lr=1e-2, weight_decay=0.0)


def batch(step=2, *, last=False, micro_batches=None, totals=None):
    micros = micro_batches or [joined(DOCUMENTS[:2]), joined(DOCUMENTS[2:])]
    return msgspec.structs.replace(rank_batch(micros, totals or TOTALS, step=step), last=last)


def dummy(micro):
    zeros = np.zeros(len(micro.token_ids), np.float32)
    return msgspec.structs.replace(micro, rl_weight=zeros, ce_weight=zeros, advantage=zeros)


def exported(tmp_path, given=None, *, loss=None, mode="rl", **options):
    """The sequences of one exported step, and what the step reported."""
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir(parents=True)
    given = given or batch()
    with learner(tmp_path / "m", optimizer=STILL, loss=loss) as one:
        one.runner.export = TokenExport(run, 2, mode=mode, **options)
        outcome = one.runner.run(given)
    return list(read_trained(run.exported_tokens(1, given.step, 0))), outcome


def values(sequences, name, where):
    """The column's values of all tokens for which ``where`` is not 0."""
    pairs = [pair for one in sequences for pair in zip(getattr(one, name), getattr(one, where), strict=True) if pair[1]]
    return [value for value, _ in pairs]


def test_rewards_and_what_echo_counts_are_told(tmp_path):
    """Of the first document ECHO counts its context too, with alpha 0; in a step without ECHO nothing counts."""
    mask = np.concatenate([micro.ce_weight != 0 for micro in DOCUMENTS[:2]])
    mask[1] = True
    first = msgspec.structs.replace(joined(DOCUMENTS[:2]), rewards=[0.5, None], ce_mask=mask)
    second = joined(DOCUMENTS[2:])
    sequences, _ = exported(tmp_path / "a", batch(micro_batches=[first, second]))
    assert [one.reward for one in sequences] == [0.5, None, None, None]
    assert sequences[0].ce_mask[1]
    assert sequences[0].ce_weight[1] == 0
    for one in sequences[1:]:
        assert one.ce_mask == [weight != 0 for weight in one.ce_weight]
    sequences, _ = exported(tmp_path / "b", batch(micro_batches=[first, second], totals={**TOTALS, "ce": 0.0}))
    assert not any(any(one.ce_mask) for one in sequences)


def test_tokens_agree_with_the_batch(tmp_path):
    sequences, _ = exported(tmp_path, decode=lambda ids: [chr(token_id) for token_id in ids])
    assert [one.sample_id for one in sequences] == ["e1/0", "e2/0", "e3/0", "e4/0"]
    for one, micro in zip(sequences, DOCUMENTS, strict=True):
        action = micro.role == TokenRole.ACTION
        assert (one.step, one.rank, one.attempt, one.run_uid, one.environment) == (2, 0, 1, "u", "a")
        assert one.token_ids == micro.token_ids.tolist()
        assert one.texts == [chr(token_id) for token_id in one.token_ids]
        assert one.role == [TokenRole(value).name.lower() for value in micro.role]
        assert np.float32(one.rl_weight).tolist() == micro.rl_weight.tolist()
        assert np.float32(one.ce_weight).tolist() == micro.ce_weight.tolist()
        assert [value is not None for value in one.engine_logprobs] == action.tolist()
        assert one.mode == "rl"
        assert one.advantage == [value if acts else None for value, acts in zip(micro.advantage, action, strict=True)]
        assert one.teacher_logprobs is one.tool is None
        assert one.trainer_logprobs[:2] == one.entropy[:2] == [None, None]
        assert None not in one.trainer_logprobs[2:]
        assert one.version_low == micro.version_low.tolist()
        assert one.denominators == TOTALS


def test_means_are_those_of_the_step(tmp_path):
    sequences, outcome = exported(tmp_path, loss=LossConfig(type="ipo", mask_low=1e-4, mask_high=1e-4))
    found = outcome.metrics
    assert found["is_masked_low"] > 0
    assert found["is_masked_high"] > 0
    assert fmean(values(sequences, "entropy", "rl_weight")) == pytest.approx(found["entropy/all"], rel=1e-6)
    assert fmean(values(sequences, "ratio", "rl_weight")) == pytest.approx(found["ratio/mean"], rel=1e-6)
    for name in ("is_masked", "is_masked_low", "is_masked_high"):
        assert fmean(values(sequences, name, "rl_weight")) == pytest.approx(found[f"{name}/all"], rel=1e-6)
    echo = values(sequences, "trainer_logprobs", "ce_weight")
    assert -fmean(echo) == pytest.approx(found["echo_nll/all"], rel=1e-6)
    for one in sequences:
        for mine, engine, ratio in zip(one.trainer_logprobs, one.engine_logprobs, one.ratio, strict=True):
            assert ratio is None or ratio == pytest.approx(math.exp(mine - engine), rel=1e-5)


def test_a_skipped_component_trained_nothing(tmp_path):
    sequences, _ = exported(tmp_path, batch(totals={"rl": 0.0, "ce": TOTALS["ce"]}))
    assert not any(weight for one in sequences for weight in one.rl_weight)
    assert all(ratio is None for one in sequences for ratio in one.ratio)
    assert any(weight for one in sequences for weight in one.ce_weight)


def test_a_loss_without_a_mask_tells_none(tmp_path):
    sequences, _ = exported(tmp_path, loss=LossConfig(type="reinforce"))
    for name in ("is_masked", "is_masked_low", "is_masked_high"):
        assert {masked for one in sequences for masked in getattr(one, name)} == {None}
    assert values(sequences, "ratio", "rl_weight")


def test_distillation_exports_the_lead_that_the_loss_used(tmp_path):
    """The batch of mode opd has advantages of 0."""
    micro = joined([msgspec.structs.replace(one, ce_weight=0 * one.ce_weight) for one in DOCUMENTS])
    told = np.random.default_rng(7).normal(-5.0, 1.0, len(micro.token_ids)).astype(np.float32)
    micro = msgspec.structs.replace(micro, advantage=0 * micro.advantage, ref_logprobs=told)
    given = batch(micro_batches=[micro], totals={"rl": TOTALS["rl"], "ce": 0.0})
    sequences, outcome = exported(tmp_path, given, loss=LossConfig(type="opd", mask_low=1e-4), mode="opd")
    assert {one.mode for one in sequences} == {"opd"}
    teacher = [value for one in sequences for value in one.teacher_logprobs]
    assert teacher == [float(value) if weight else None for value, weight in zip(told, micro.rl_weight, strict=True)]
    lead = values(sequences, "advantage", "rl_weight")
    own = values(sequences, "trainer_logprobs", "rl_weight")
    theirs = values(sequences, "teacher_logprobs", "rl_weight")
    assert lead == pytest.approx(np.subtract(theirs, own).tolist(), abs=1e-6)
    assert fmean(lead) == pytest.approx(-outcome.metrics["teacher_kl/all"], rel=1e-6)
    assert min(lead) == pytest.approx(-outcome.metrics["teacher_kl_max/all"], rel=1e-6)
    assert 0 < fmean(values(sequences, "is_masked_low", "rl_weight")) < 1
    assert not any(values(sequences, "is_masked_high", "rl_weight"))


def test_supervised_training_exports_its_targets_and_their_tools(tmp_path):
    """No engine drew a token, so nothing has a ratio or an advantage."""
    target = np.arange(9) >= 5
    micro = msgspec.structs.replace(
        DOCUMENTS[0],
        role=np.where(np.arange(9) < 7, TokenRole.CONTEXT, TokenRole.ENV_OUTPUT).astype(np.uint8),
        rl_weight=np.zeros(9, np.float32),
        ce_weight=target.astype(np.float32),
        tool=np.array([-1] * 7 + [1, 0], np.int16),
        tool_names=["cat", "ls"],
    )
    given = batch(micro_batches=[micro], totals={"rl": 0.0, "ce": 4.0})
    (one,), outcome = exported(tmp_path, given, mode="sft")
    assert one.mode == "sft"
    assert one.tool == [None] * 7 + ["ls", "cat"]
    assert one.ce_weight == target.tolist()
    nothing = [None] * 9
    assert one.advantage == one.ratio == one.is_masked == one.is_masked_low == one.engine_logprobs == nothing
    assert one.teacher_logprobs is None
    assert -fmean(one.trainer_logprobs[5:]) == pytest.approx(outcome.metrics["echo_nll/all"], rel=1e-6)


def test_dummies_are_not_exported(tmp_path):
    sequences, _ = exported(tmp_path, batch(micro_batches=[joined([DOCUMENTS[0], dummy(DOCUMENTS[1])])]))
    assert [one.sample_id for one in sequences] == ["e1/0"]


@pytest.mark.parametrize(("max_tokens", "kept"), [(1, 1), (22, 1), (23, 2), (27, 2), (28, 3), (48, 4)])
def test_a_file_is_bounded_by_whole_sequences(tmp_path, max_tokens, kept):
    sequences, _ = exported(tmp_path, max_tokens=max_tokens)
    assert [len(one.token_ids) for one in sequences] == [9, 14, 5, 20][:kept]


def test_only_due_steps_and_the_last_one_are_exported(tmp_path):
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    export = TokenExport(run, 2, mode="rl")
    with learner(tmp_path / "m", optimizer=STILL) as one:
        one.runner.export = export
        for step in (1, 2, 3, 4, 5):
            one.runner.run(batch(step, last=step == 5))
    names = sorted(path.name for path in (run.root / "tokens" / "attempt_1").iterdir())
    assert names == [f"step_00000{step}.rank_0.jsonl" for step in (2, 4, 5)]
    assert {one.step for one in read_trained(run.exported_tokens(1, 4, 0))} == {4}


def test_an_export_changes_no_bit_of_the_step(tmp_path):
    weights = []
    (tmp_path / "run").mkdir()
    for export in (None, TokenExport(RunDirectory(tmp_path / "run"), 1, mode="rl")):
        with learner(tmp_path / "m", optimizer=STILL) as one:
            one.runner.export = export
            one.runner.run(batch())
            weights.append(one.weights())
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_a_disk_that_refuses_does_not_stop_the_step(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with learner(tmp_path / "m", optimizer=STILL) as one:
        one.runner.export = TokenExport(RunDirectory(tmp_path / "run"), 1, mode="rl")
        assert one.runner.run(batch()).trained_tokens > 0


def test_a_model_folder_without_a_tokenizer_gives_no_texts(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert tokenizer_of(tmp_path) is None
