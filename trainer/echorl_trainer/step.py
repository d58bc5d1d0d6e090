"""One optimizer step: forward and backward over a rank's micro-batches, checks on all ranks, then the update.

    micro-batches -> losses, gradients, tallies (on the device, nothing waits for it)
                  -> one transfer, one exchange between ranks -> finite? -> clip -> optimizer

Weights are touched only after every rank knows that every rank's losses and the gradient are finite.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from echorl_core.config import LossConfig
from echorl_core.wire import LogprobGap, MicroBatch, RankBatch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from echorl_trainer.batches import ScoredBatch, score_batch
from echorl_trainer.losses import cross_entropy_loss, dppo_loss, graph_anchor
from echorl_trainer.tally import Tally, merge, summarize, tally_batch
from echorl_trainer.model import PackedTokens, Policy
from echorl_trainer.optimizer import Schedule
from echorl_trainer.parallel import Ranks

COMPONENTS = ("rl", "ce")


class NonFinite(Exception):
    """A loss or the gradient is NaN or infinite; no weight has been touched."""


@dataclass(frozen=True)
class StepOutcome:
    """What a step did, reduced over ranks and the same on all of them."""

    metrics: dict[str, float | None]
    """None where there was nothing to average, or the component was skipped."""
    gap: LogprobGap
    trained_tokens: int
    packed_tokens: int
    seconds: dict[str, float]
    """This rank's wall seconds: ``forward_backward`` and ``optimizer``."""


@dataclass(frozen=True)
class _RankShare:
    """What one rank tells the others after its backwards."""

    tally: Tally
    losses: list[list[float]]
    """Per micro-batch: the share of each of ``COMPONENTS``."""
    trained_tokens: int
    packed_tokens: int
    failure: str | None


class StepRunner:
    """Runs optimizer steps on one rank; all ranks call ``run`` together with batches of the same step."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        schedule: Schedule,
        loss_config: LossConfig,
        ranks: Ranks,
        max_grad_norm: float,
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._schedule = schedule
        self._loss_config = loss_config
        self._ranks = ranks
        self._max_grad_norm = max_grad_norm
        self._vocab_size = int(policy.model.get_input_embeddings().num_embeddings)

    def run(self, batch: RankBatch) -> StepOutcome:
        """Train one step.

        Raises:
            ValueError: the batch is malformed or another rank's.
            NonFinite: on every rank, before any weight is touched; gradients are cleared.
        """
        self._check(batch)
        begin = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        environments = sorted({name for micro in batch.micro_batches for name in micro.environments})
        tally, losses = self._accumulate(batch, environments)
        norm = self._gradient_norm()
        share = self._share(batch, tally, losses, norm)
        shares: list[_RankShare] = [share] * self._ranks.world_size
        if self._ranks.world_size > 1:
            dist.all_gather_object(shares, share)
        failures = [each.failure for each in shares if each.failure]
        if failures:
            self._optimizer.zero_grad(set_to_none=True)
            raise NonFinite("; ".join(failures))
        middle = time.perf_counter()
        lr = self._update(batch.step, norm)
        metrics, gap = summarize(merge([each.tally for each in shares]))
        metrics |= _losses(shares, batch) | {"optim/grad_norm": float(norm), "optim/lr": lr}
        return StepOutcome(
            metrics=metrics,
            gap=gap,
            trained_tokens=sum(each.trained_tokens for each in shares),
            packed_tokens=sum(each.packed_tokens for each in shares),
            seconds={"forward_backward": middle - begin, "optimizer": time.perf_counter() - middle},
        )

    def _check(self, batch: RankBatch) -> None:
        place = (batch.rank, batch.num_ranks)
        if place != (self._ranks.rank, self._ranks.world_size):
            raise ValueError(f"step {batch.step}: batch is for rank {place[0]} of {place[1]}, this is rank "
                             f"{self._ranks.rank} of {self._ranks.world_size}")
        unknown = sorted(set(batch.denominators) - set(COMPONENTS))
        if unknown:
            raise ValueError(f"step {batch.step}: not supported yet: loss components {unknown}; known: {COMPONENTS}")
        if not batch.micro_batches:
            raise ValueError(f"step {batch.step}: rank {batch.rank} has no micro-batches")

    def _accumulate(self, batch: RankBatch, environments: list[str]) -> tuple[Tally, Tensor]:
        """Backward over all micro-batches; tallies and component losses [micro-batch, component] on the device."""
        tally = Tally.empty(environments, self._ranks.device)
        losses = []
        for micro in batch.micro_batches:
            scored = score_batch(
                micro,
                environments=environments,
                version=batch.step - 1,
                vocab_size=self._vocab_size,
                device=self._ranks.device,
            )
            shares, total = self._forward(scored, batch.denominators, tally)
            total.backward()  # type: ignore[no-untyped-call]
            losses.append(shares)
        return tally, torch.stack(losses)

    def _forward(self, scored: ScoredBatch, denominators: dict[str, float], tally: Tally) -> tuple[Tensor, Tensor]:
        config = self._loss_config
        scores = self._policy(scored.tokens)
        logprobs = scores.logprobs
        outputs = {}
        if denominators.get("rl", 0) > 0:
            outputs["rl"] = dppo_loss(
                logprobs,
                scored.sampler_logprobs,
                scored.advantages,
                scored.rl_weight,
                mask_low=config.mask_low,
                mask_high=config.mask_high,
                kl_tau=config.kl_tau,
                denominator=denominators["rl"],
            )
        if denominators.get("ce", 0) > 0:
            outputs["ce"] = cross_entropy_loss(logprobs, scored.ce_weight, denominator=denominators["ce"])
        tally_batch(tally, scored, scores, outputs)
        parts = [outputs[name].loss for name in COMPONENTS if name in outputs]
        total = sum(parts[1:], start=parts[0]) if parts else graph_anchor(logprobs)
        zero = logprobs.new_zeros(())
        shares = torch.stack([outputs[name].loss.detach() if name in outputs else zero for name in COMPONENTS])
        return shares, total

    def _gradient_norm(self) -> Tensor:
        """Euclidean norm over all ranks' shards; 0-d, on the device."""
        gradients = [p.grad for p in self._policy.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def _share(self, batch: RankBatch, tally: Tally, losses: Tensor, norm: Tensor) -> _RankShare:
        local = tally.cpu()
        values = losses.cpu()
        failure = _loss_failure(batch, values) or _norm_failure(batch, norm, self._policy)
        active = [batch.denominators.get(name, 0) > 0 for name in COMPONENTS]
        return _RankShare(
            tally=local,
            losses=values.double().tolist(),
            trained_tokens=sum(_trained_tokens(micro, active) for micro in batch.micro_batches),
            packed_tokens=sum(len(micro.token_ids) for micro in batch.micro_batches),
            failure=failure,
        )

    def _update(self, step: int, norm: Tensor) -> float:
        torch.nn.utils.clip_grads_with_norm_(self._policy.parameters(), self._max_grad_norm, norm)
        lr = self._schedule.apply(step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return lr


def _trained_tokens(micro: MicroBatch, active: Sequence[bool]) -> int:
    weighted = (micro.rl_weight != 0) & active[0] | (micro.ce_weight != 0) & active[1]
    return int(weighted.sum())


def _loss_failure(batch: RankBatch, losses: Tensor) -> str | None:
    bad = (~losses.isfinite()).nonzero()
    if not len(bad):
        return None
    micro, component = bad[0].tolist()
    return (
        f"step {batch.step}: loss component {COMPONENTS[component]} is {float(losses[micro, component])} on rank "
        f"{batch.rank} in the micro-batch of samples {', '.join(batch.micro_batches[micro].sample_ids)}"
    )


def _norm_failure(batch: RankBatch, norm: Tensor, policy: Policy) -> str | None:
    if norm.isfinite():
        return None
    return f"step {batch.step}: the gradient's norm is {float(norm)}"


def _losses(shares: Sequence[_RankShare], batch: RankBatch) -> dict[str, float | None]:
    sums = {
        name: sum(row[index] for share in shares for row in share.losses)
        for index, name in enumerate(COMPONENTS)
        if batch.denominators.get(name, 0) > 0
    }
    found: dict[str, float | None] = {f"loss/{name}": sums.get(name) for name in COMPONENTS}
    return found | {"loss/total": sum(sums.values()) if sums else None}


@torch.no_grad()
def probe_logprobs(policy: Policy, ranks: Ranks, token_ids: list[int]) -> list[float]:
    """Natural-log probabilities, at temperature 1, of tokens 1.. given their prefix. All ranks call this together.

    Raises:
        ValueError: fewer than two tokens.
    """
    length = len(token_ids)
    if length < 2:
        raise ValueError(f"a probe needs at least 2 tokens, found {length}")
    everything = torch.arange(length, device=ranks.device)
    scores = policy(
        PackedTokens(
            token_ids=torch.tensor(token_ids, device=ranks.device),
            positions=everything,
            cu_seqlens=torch.tensor([0, length], dtype=torch.int32, device=ranks.device),
            max_len=length,
            rows=everything[1:],
            temperature=torch.ones(length, device=ranks.device),
        )
    )
    if isinstance(policy, FSDPModule):
        # Without a backward the root keeps its gathered weights, which the next optimizer step would leave stale.
        policy.reshard()
    values: list[float] = scores.logprobs.double().tolist()
    return values
