"""The loss of a micro-batch as a function of its logprobs: slopes, and whether tokens depend on each other."""

import numpy as np
import pytest
import torch

from echorl_core.config import HookConfig, LossConfig
from echorl_testing.orchestrator.packs import denominators, document, joined
from echorl_trainer.batches import score_batch
from echorl_trainer.losses import policy_loss
from echorl_trainer.objective import MicroBatchLoss

LOSSES = ("dppo", "ipo", "grpo", "cispo", "reinforce")
DOCUMENTS = [document(seed, length) for seed, length in enumerate([9, 14, 9, 5, 20, 14, 7, 9], start=1)]
PACK, TOTALS = joined(DOCUMENTS), denominators(DOCUMENTS)
CUSTOM = LossConfig(type="custom", hook=HookConfig(import_path="echorl_testing.trainer.own_losses:sequence_ratio"))


def objective(loss, totals=None):
    scored = score_batch(PACK, sources=[("a", "")], version=0, vocab_size=265, device=torch.device("cpu"))
    return MicroBatchLoss(loss, TOTALS if totals is None else totals, scored)


@pytest.mark.parametrize("kind", LOSSES)
def test_echo_tokens_get_minus_alpha_over_the_denominator_and_first_tokens_nothing(kind):
    one = objective(policy_loss(LossConfig(type=kind)))
    rows = one.scored.tokens.rows.tolist()
    logprobs = torch.linspace(-6.0, -0.1, len(rows)).requires_grad_()
    one(logprobs).backward()
    slopes = dict(zip(rows, logprobs.grad, strict=True))
    echoed = np.flatnonzero(PACK.ce_weight)
    assert len(echoed) == TOTALS["ce"]
    expected = -torch.tensor(0.05) / TOTALS["ce"]
    assert all(torch.equal(slopes[row], expected) for row in echoed.tolist())
    first = np.cumsum([0, *PACK.lengths[:-1]]).tolist()
    assert not slopes.keys() & set(first)
    others = slopes.keys() - set(echoed.tolist()) - set(np.flatnonzero(PACK.rl_weight).tolist())
    assert all(slopes[row] == 0 for row in others)


def test_outputs_are_of_the_last_call():
    one = objective(policy_loss(LossConfig()))
    count = len(one.scored.tokens.rows)
    one(torch.full((count,), -1.0))
    total = one(torch.full((count,), -2.0))
    assert one.outputs.keys() == {"rl", "ce"}
    assert total == one.outputs["rl"].loss + one.outputs["ce"].loss
    assert one.outputs["ce"].loss.item() == pytest.approx(2.0 * 0.05)


def test_only_a_users_function_sees_more_than_a_token():
    of = {kind: policy_loss(LossConfig(type=kind)) for kind in (*LOSSES, "opd")}
    assert all(objective(loss).by_token for loss in of.values())
    assert not objective(policy_loss(CUSTOM)).by_token
    assert not objective(policy_loss(LossConfig(), own={"b": CUSTOM})).by_token
    assert objective(policy_loss(LossConfig(), own={"b": LossConfig(type="grpo")})).by_token
    assert objective(policy_loss(CUSTOM), {"rl": 0.0, "ce": 5.0}).by_token
