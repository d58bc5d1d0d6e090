"""What the parts of the trainer's benchmark share: its set-up, its clock, learners, and where results go."""

import gc
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from echorl_core import jsonsafe
from echorl_core.config import LossConfig, ModelConfig, OptimizerConfig
from echorl_core.wire.batch import RankBatch
from echorl_trainer.batches import Source
from echorl_trainer.loading import start_policy
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import Checkpointing, Policy
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Accumulation, Ranks
from echorl_trainer.step import StepRunner
from echorl_trainer.token_metrics import TokenMetrics

Dtype = Literal["float32", "bfloat16"]

FROZEN = OptimizerConfig(type="sgd", lr=0.0, weight_decay=0.0, max_grad_norm=1e30)
"""Weights stay as they are and the gradient is not clipped."""
ADAMW = OptimizerConfig(type="adamw", lr=1e-6, max_grad_norm=1.0)


class WatchedRunner(StepRunner):
    """A step whose loop over micro-batches can be put inside a context."""

    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def _accumulate(
        self, batch: RankBatch, sources: list[Source], beside: Callable[[], None]
    ) -> tuple[TokenMetrics, torch.Tensor]:
        with self.around():
            return super()._accumulate(batch, sources, beside)


@dataclass(frozen=True)
class Learner:
    """A sharded policy, its optimizer, and its step."""

    policy: Policy
    optimizer: Optimizer
    runner: WatchedRunner


@dataclass
class Bench:
    """One benchmark run."""

    ranks: Ranks
    model: Path
    recordings: Path
    out: Path
    limit_s: float
    accumulation: Accumulation = "sharded"
    """Of learners' gradients."""
    began: float = field(default_factory=time.monotonic)
    part_ends: float = math.inf
    """Of ``time.monotonic``: when the running part is interrupted."""

    @property
    def cuda(self) -> bool:
        """Whether there is a GPU to look at."""
        return self.ranks.device.type == "cuda"

    def left_s(self) -> float:
        """Seconds until the running part's limit, or everything's."""
        return min(self.began + self.limit_s, self.part_ends) - time.monotonic()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize()

    def learner(
        self,
        dtype: Dtype,
        optimizer: OptimizerConfig,
        *,
        checkpointing: Checkpointing = "none",
        compiled: bool = False,
    ) -> Learner:
        """Load the model as a trainer rank does."""
        config = ModelConfig(path=str(self.model), dtype=dtype, max_model_len=32_768, renderer="engine")
        policy = start_policy(config, self.ranks, seed=0, compile=compiled, activation_checkpointing=checkpointing)
        chosen = build_optimizer(policy, optimizer)
        schedule = build_schedule(chosen, optimizer, 1000)
        loss, norm = policy_loss(LossConfig()), optimizer.max_grad_norm
        runner = WatchedRunner(policy, chosen, schedule, loss, self.ranks, norm, self.accumulation)
        return Learner(policy, chosen, runner)

    def report(self, part: str, **values: Any) -> None:
        """Keep a result, write it and say it."""
        row = {"part": part, **values}
        with (self.out / "trainer_gpu.jsonl").open("a") as file:
            file.write(f"{jsonsafe.dumps(row)}\n")
        print(f"[{time.monotonic() - self.began:6.1f} s] {part}", flush=True)

    def attempt(self, part: str, work: Callable[[], None], limit_s: float) -> bool:
        """Do one part within ``limit_s``; its failure is reported and stops no other. Whether it went well."""
        limit_s = min(limit_s, self.left_s())
        if limit_s < 1:
            self.report(part, skipped="no time left")
            return False
        try:
            self.part_ends = time.monotonic() + limit_s
            with deadline(limit_s):
                work()
        except Exception as error:
            lines = "".join(traceback.format_exception(error)).strip().splitlines()
            traceback.clear_frames(error.__traceback__)  # they hold tensors
            self.report(part, failed=f"{type(error).__name__}: {error}"[:600], traceback=lines[-14:])
            print("\n".join(lines[-14:]), file=sys.stderr, flush=True)
            return False
        finally:
            self.part_ends = math.inf
            self.clean()
        return True

    def clean(self) -> None:
        """Give memory back."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Interrupt the main thread's Python code after ``seconds``.

    Raises:
        TimeoutError: it was interrupted.
    """

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"ran over {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
