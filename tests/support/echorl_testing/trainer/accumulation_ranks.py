"""What a rank does in the tests of gradient accumulation; importable by spawned processes."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from echorl_testing.orchestrator.packs import SGD, denominators, document, learner, rank_batch
from echorl_testing.trainer.invariance import plain
from echorl_trainer.parallel import Accumulation
from echorl_trainer.probe import probe_logprobs

MICRO_BATCHES = 4
_PROBE = [3, 1, 200, 17]
_KINDS = {
    "c10d::_allgather_base_": "gathers",
    "c10d::_reduce_scatter_base_": "reductions",
    "c10d::allreduce_": "exchanges",
}


class _Collectives(TorchDispatchMode):
    """Counts what FSDP says to other ranks: gathers of weights, reductions over shards, exchanges between replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if name in _KINDS:
            self.counts[_KINDS[name]] += 1
        return func(*args, **(kwargs or {}))


def stepped(folder: Path, accumulation: Accumulation, replicate: int = 1) -> dict[str, Any]:
    """Two steps of ``MICRO_BATCHES`` documents a rank: collectives of the second, and what it leaves.

    Neither is a step in which a former version is looked at.
    """
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    parts = [document(index, 9 + index) for index in range(2 * MICRO_BATCHES)]
    share = parts[rank::num_ranks] if num_ranks > 1 else parts
    with learner(folder, optimizer=SGD, replicate=replicate, accumulation=accumulation) as one:
        one.runner.run(rank_batch(share, denominators(parts), step=3, rank=rank, num_ranks=num_ranks))
        probe_logprobs(one.policy, one.ranks, _PROBE)  # leaves nothing gathered for the step that follows
        with _Collectives() as seen:
            one.runner.run(rank_batch(share, denominators(parts), step=4, rank=rank, num_ranks=num_ranks))
        return {
            "counts": dict(seen.counts),
            "gradient": plain(dict(one.gradient)),
            "weights": plain(one.weights()),
            "probe": probe_logprobs(one.policy, one.ranks, _PROBE),
        }
