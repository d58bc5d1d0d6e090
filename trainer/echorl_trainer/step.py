"""One optimizer step: forward and backward over a rank's micro-batches, checks on all ranks, then the update.

    micro-batches -> losses, gradients, tallies (on the device, nothing waits for it)
                  -> one transfer, one exchange between ranks -> finite? -> clip -> optimizer

Weights are touched only after every rank knows that every rank's losses and the gradient are finite.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.optim import Optimizer

from echorl_core.wire.batch import MicroBatch, RankBatch
from echorl_core.wire.reports import LogprobGap
from echorl_trainer.batches import ScoredBatch, Source, score_batch, sources_of
from echorl_trainer.former import FormerWeights
from echorl_trainer.losses import PolicyLoss
from echorl_trainer.model import Policy
from echorl_trainer.objective import COMPONENTS, MicroBatchLoss
from echorl_trainer.optimizer import Schedule
from echorl_trainer.parallel import Accumulation, Ranks, accumulating
from echorl_trainer.routers import router_shape, routers
from echorl_trainer.shards import local
from echorl_trainer.token_export import TokenExport
from echorl_trainer.token_metrics import GAP_TOLERANCE, TokenMetrics, count_batch, count_gap, merge, summarize

Shared = TypeVar("Shared")


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

    token_metrics: TokenMetrics
    losses: list[float]
    """This rank's part of each of ``COMPONENTS``."""
    trained_tokens: int
    packed_tokens: int
    loss_failure: str | None
    gradient_failure: int | None
    """The micro-batch after which this rank's part of the gradient was no longer finite."""


class StepRunner:
    """Runs optimizer steps on one rank; all ranks call ``run`` together with batches of the same step."""

    def __init__(  # noqa: PLR0917 - in the order in which they are built
        self,
        policy: Policy,
        optimizer: Optimizer,
        schedule: Schedule,
        policy_loss: PolicyLoss,
        ranks: Ranks,
        max_grad_norm: float,
        accumulation: Accumulation = "sharded",
    ) -> None:
        self._policy = policy
        self._optimizer = optimizer
        self._schedule = schedule
        self._policy_loss = policy_loss
        self._ranks = ranks
        self._max_grad_norm = max_grad_norm
        self._accumulation = accumulation
        self.export: TokenExport | None = None
        """Is shown every micro-batch; None: tokens are not exported."""
        self._vocab_size = int(policy.model.get_input_embeddings().num_embeddings)
        self._former = FormerWeights(policy)
        self._routers = routers(policy)
        self._routing = router_shape(self._routers)
        self._gap_tolerance = GAP_TOLERANCE[policy.compute_dtype]

    def run(self, batch: RankBatch, *, beside: Callable[[], None] = lambda: None) -> StepOutcome:
        """Train one step.

        ``beside``: called once, when the first micro-batch's forward and backward were launched. Weights are those that
        the step began with; what it launches on the device waits behind them, while the host launches it for nothing.

        Raises:
            ValueError: the batch is malformed or another rank's.
            NonFinite: on every rank, before any weight is touched; gradients are cleared.
            HookError: a custom loss raised, or returned what is no loss.
        """
        self._check(batch)
        begin = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=True)
        token_metrics, checks = self._accumulate(batch, sources_of(batch.micro_batches), beside)
        norm = self._gradient_norm()
        shares = self._gather(_share(batch, token_metrics.cpu(), checks.cpu(), speaks=self._ranks.speaks))
        grad_norm = float(norm)
        self._require_finite(batch, shares, grad_norm)
        middle = time.perf_counter()
        lr = self._update(batch.step, norm)
        metrics, gap = summarize(merge([each.token_metrics for each in shares]))
        metrics |= _losses(shares, batch) | {"optim/grad_norm": grad_norm, "optim/lr": lr}
        end = time.perf_counter()
        if self.export is not None:
            self.export.write(batch)
        return StepOutcome(
            metrics=metrics,
            gap=gap,
            trained_tokens=sum(each.trained_tokens for each in shares),
            packed_tokens=sum(each.packed_tokens for each in shares),
            seconds={"forward_backward": middle - begin, "optimizer": end - middle},
        )

    def _check(self, batch: RankBatch) -> None:
        place, mine = (batch.rank, batch.num_ranks), (self._ranks.data_rank, self._ranks.num_data_ranks)
        if place != mine:
            raise ValueError(
                f"step {batch.step}: batch is for rank {place[0]} of {place[1]}, this is rank {mine[0]} of {mine[1]}"
            )
        unknown = sorted(set(batch.denominators) - set(COMPONENTS))
        if unknown:
            raise ValueError(f"step {batch.step}: not supported yet: loss components {unknown}; known: {COMPONENTS}")
        if not batch.micro_batches:
            raise ValueError(f"step {batch.step}: rank {batch.rank} has no micro-batches")

    def _accumulate(
        self, batch: RankBatch, sources: list[Source], beside: Callable[[], None]
    ) -> tuple[TokenMetrics, Tensor]:
        """Backward over all micro-batches: tallies, and per micro-batch its losses and the norm of what is summed."""
        token_metrics = TokenMetrics.empty(sources, self._ranks.device)
        if self._former.holds(batch.step - 2):
            scored = self._scored(batch.micro_batches[0], sources, version=batch.step - 2)
            with self._former.in_place():
                logprobs = self._policy(scored.tokens).logprobs
                if self._ranks.speaks:
                    count_gap(token_metrics, scored, logprobs, self._gap_tolerance)
        checks = []
        with accumulating(self._policy, self._accumulation) as begin:
            for number, micro in enumerate(batch.micro_batches, start=1):
                begin(number == len(batch.micro_batches))
                scored = self._scored(micro, sources, version=batch.step - 1)
                shares, total = self._forward(batch, micro, scored, token_metrics)
                total.backward()  # type: ignore[no-untyped-call]
                checks.append(torch.cat([shares, self._local_norm()[None]]))
                if number == 1 < len(batch.micro_batches):
                    beside()
        if len(batch.micro_batches) == 1:  # only now do layers give back again what a forward alone gathers
            beside()
        return token_metrics, torch.stack(checks)

    def _scored(self, micro: MicroBatch, sources: list[Source], *, version: int) -> ScoredBatch:
        return score_batch(
            micro,
            sources=sources,
            version=version,
            vocab_size=self._vocab_size,
            device=self._ranks.device,
            context=self._ranks.context_size,
            routing=self._routing,
        )

    def _forward(
        self, batch: RankBatch, micro: MicroBatch, scored: ScoredBatch, token_metrics: TokenMetrics
    ) -> tuple[Tensor, Tensor]:
        objective = MicroBatchLoss(self._policy_loss, batch.denominators, scored)
        scores = self._policy(scored.tokens, objective if objective.by_token else None)
        if self._routers:  # before backward, where recomputation would overwrite it
            token_metrics.add_routing(torch.stack([one.load for one in self._routers]))
        total = objective(scores.logprobs) if scores.loss is None else scores.loss
        outputs = objective.outputs if self._ranks.speaks else {}
        if self._ranks.speaks:
            count_batch(token_metrics, scored, scores, outputs, gap_tolerance=self._gap_tolerance)
        if self.export is not None:
            self.export.add(batch, micro, scored, scores, outputs)
        zero = total.new_zeros(())
        shares = torch.stack([outputs[name].loss.detach() if name in outputs else zero for name in COMPONENTS])
        return shares, total

    def _local_norm(self) -> Tensor:
        """Norm of this rank's part of the gradient so far; once it is not finite it stays so."""
        gradients = [p.grad for p in self._policy.parameters() if p.grad is not None]
        if not gradients:  # not reduced yet
            return torch.zeros((), device=self._ranks.device)
        return torch.nn.utils.get_total_norm([local(gradient) for gradient in gradients])

    def _gradient_norm(self) -> Tensor:
        """Euclidean norm over all ranks' shards, of which a replica has each once; 0-d, on the device."""
        mesh = self._ranks.mesh
        squares = DTensor.from_local(
            self._local_norm().double().square(), mesh, [*[Replicate()] * (mesh.ndim - 1), Partial()], run_check=False
        )
        return squares.full_tensor().sqrt().float()

    @property
    def _is_reduced_once(self) -> bool:
        """Whether a rank sees no gradient of its own before the step's last micro-batch."""
        return self._accumulation == "unsharded" or self._ranks.mesh.ndim > 1

    def _gather(self, value: Shared) -> list[Shared]:
        """Every rank's value, in the order of ranks."""
        if self._ranks.world_size == 1:
            return [value]
        values: list[Any] = [None] * self._ranks.world_size
        dist.all_gather_object(values, value)
        return values

    def _require_finite(self, batch: RankBatch, shares: Sequence[_RankShare], grad_norm: float) -> None:
        """Raise for loss or gradients that are not finite: every rank comes to the same verdict."""
        failures = [share.loss_failure for share in shares if share.loss_failure]
        micros = [share.gradient_failure for share in shares if share.gradient_failure is not None]
        if not failures and not micros and math.isfinite(grad_norm):
            return
        self._optimizer.zero_grad(set_to_none=True)
        if not failures and not micros:
            failures = [f"the gradient's norm is {grad_norm}"]
        elif not failures:
            # A reduced gradient does not tell whose it was, so every rank names its samples of that micro-batch; of one
            # that was only reduced at the end, those of all.
            bad = (
                batch.micro_batches[: min(micros) + 1] if self._is_reduced_once else [batch.micro_batches[min(micros)]]
            )
            samples = self._gather(", ".join(name for micro in bad for name in micro.sample_ids))
            named = ", ".join(dict.fromkeys(samples))  # ranks that share a pack name the same
            failures = [f"the gradient is not finite after micro-batch {min(micros)} of samples {named}"]
        if self._policy_loss.name:
            failures.append(f"the rl loss is {self._policy_loss.name}")
        raise NonFinite(f"step {batch.step}: {'; '.join(failures)}")

    def _update(self, step: int, norm: Tensor) -> float:
        gradients = [local(p.grad) for p in self._policy.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        lr = self._schedule.apply(step)
        self._former.keep(step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return lr


def _share(batch: RankBatch, token_metrics: TokenMetrics, checks: Tensor, *, speaks: bool) -> _RankShare:
    bad = (~checks.isfinite()).nonzero().tolist()
    in_loss = [(micro, COMPONENTS[column]) for micro, column in bad if column < len(COMPONENTS)]
    loss_failure, told = None, batch.micro_batches if speaks else []
    if in_loss:
        micro, name = in_loss[0]
        samples = ", ".join(batch.micro_batches[micro].sample_ids)
        loss_failure = f"the {name} loss is not finite on rank {batch.rank} in the micro-batch of samples {samples}"
    return _RankShare(
        token_metrics=token_metrics,
        losses=checks[:, : len(COMPONENTS)].double().sum(dim=0).tolist(),
        trained_tokens=sum(_trained_tokens(micro, batch.denominators) for micro in told),
        packed_tokens=sum(len(micro.token_ids) for micro in told),
        loss_failure=loss_failure,
        gradient_failure=bad[0][0] if bad else None,
    )


def _trained_tokens(micro: MicroBatch, denominators: dict[str, float]) -> int:
    rl, ce = (denominators.get(name, 0) > 0 for name in COMPONENTS)
    weighted = (micro.rl_weight != 0) & rl | (micro.ce_weight != 0) & ce
    return int(weighted.sum())


def _losses(shares: Sequence[_RankShare], batch: RankBatch) -> dict[str, float | None]:
    sums = {
        name: sum(share.losses[index] for share in shares)
        for index, name in enumerate(COMPONENTS)
        if batch.denominators.get(name, 0) > 0
    }
    found: dict[str, float | None] = {f"loss/{name}": sums.get(name) for name in COMPONENTS}
    return found | {"loss/total": sum(sums.values()) if sums else None}
