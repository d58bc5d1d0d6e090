"""What a loop of training steps pays for publishing each version, against the same steps without.

Steps are timed in runs of a few, one after the other without a pause, as a trainer makes them: copies, hashes and
whatever else goes on beside them are part of what they pay. A run begins and ends behind the begin of a publication.
"""

import argparse
import itertools
import time
from collections import defaultdict
from collections.abc import Mapping

import torch
from msgspec.structs import replace

from benchmarks.step.__main__ import drawn
from benchmarks.trainer_bench import ADAMW
from echorl_core.config import LossConfig
from echorl_core.wire.batch import RankBatch
from echorl_trainer.losses import policy_loss
from echorl_trainer.model import Policy
from echorl_trainer.optimizer import build_optimizer, build_schedule
from echorl_trainer.parallel import Ranks
from echorl_trainer.publication import Publication
from echorl_trainer.publish import Publisher
from echorl_trainer.step import StepRunner

STEPS = 4
"""Of a run."""
ALONE = "a step without publication"
EARLY = "the probe at once"
LATE = "the probe beside the next step"
WHOLE = "the probe beside the next step, no deltas"
SIDES = (EARLY, LATE, WHOLE)


class Loop:
    """Steps of one policy on one batch, whose versions are published or not."""

    def __init__(
        self,
        policy: Policy,
        ranks: Ranks,
        publishers: Mapping[str, Publisher],
        options: argparse.Namespace,
        *,
        first: int,
    ) -> None:
        """``publishers``: by side. ``first``: the first version that is free."""
        optimizer = build_optimizer(policy, ADAMW)
        schedule = build_schedule(optimizer, ADAMW, 1000)
        self._runner = StepRunner(
            policy, optimizer, schedule, policy_loss(LossConfig()), ranks, ADAMW.max_grad_norm, "sharded"
        )
        vocabulary = int(policy.model.get_input_embeddings().num_embeddings)
        # Not a step after which weights are kept to be compared.
        self._batch: RankBatch = replace(drawn(options, vocabulary, options.micro_batches), step=3)
        self._publishers, self._device = publishers, ranks.device
        self._versions = itertools.count(first)
        self.visible: dict[str, list[float]] = defaultdict(list)
        """Seconds from each publication's begin until its version was visible, by side."""
        self.called: dict[str, list[float]] = defaultdict(list)
        """Seconds of each call that begins one, by side."""

    def _settle(self) -> None:
        # Not the whole device: the copy goes on beside the next step, as it does in a run.
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def _begin(self, side: str) -> Publication:
        began = time.perf_counter()
        publication = self._publishers[side].begin(next(self._versions), probe=side == EARLY)
        self.called[side].append(time.perf_counter() - began)
        assert publication is not None  # noqa: S101 - this is rank 0
        return publication

    def alone(self) -> float:
        """Seconds of a step without publication."""
        self._settle()
        began = time.perf_counter()
        for _ in range(STEPS):
            self._runner.run(self._batch)
        self._settle()
        return (time.perf_counter() - began) / STEPS

    def publishing(self, side: str) -> float:
        """Seconds of a step, each of whose versions is published."""
        publisher = self._publishers[side]
        publisher.on_visible = lambda _, seconds: self.visible[side].append(seconds)
        under_way = [self._begin(side)]
        self._settle()
        began = time.perf_counter()
        for _ in range(STEPS):
            self._runner.run(self._batch, beside=publisher.probe)
            under_way.append(self._begin(side))
        self._settle()
        taken = (time.perf_counter() - began) / STEPS
        publisher.probe()
        for one in under_way:
            one.result()
        return taken
