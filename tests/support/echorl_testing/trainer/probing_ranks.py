"""What a rank does in the tests of probes beside a step; importable by spawned processes."""

import os
from pathlib import Path
from typing import Any

from echorl_core.config import TrainerConfig
from echorl_core.identity import RunIdentity
from echorl_testing.orchestrator.packs import SGD, denominators, document, learner, rank_batch
from echorl_testing.trainer.fake_orchestrator import TOKEN
from echorl_testing.trainer.invariance import plain
from echorl_trainer.health import Health
from echorl_trainer.parallel import disconnect
from echorl_trainer.probe import probe_logprobs
from echorl_trainer.rank import run_rank

PROBE = [3, 1, 200, 17]


def stepped(folder: Path, micro_batches: int, *, beside: bool, **options: Any) -> dict[str, Any]:
    """Two steps, of which the second looks at a former version, too, with probes before, beside and after it."""
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    places = num_ranks // options.get("context", 1)
    place = rank // options.get("context", 1)
    parts = [document(index, 9 + index) for index in range(micro_batches * places)]
    with learner(folder, optimizer=SGD, **options) as one:

        def probed() -> list[float]:
            return probe_logprobs(one.policy, one.ranks, PROBE)

        found: list[list[float]] = []
        before = []
        for step in (1, 2):
            before = probed()
            batch = rank_batch(parts[place::places], denominators(parts), step=step, rank=place, num_ranks=places)
            one.runner.run(batch, beside=(lambda: found.append(probed())) if beside else lambda: None)
        return {"before": before, "beside": found, "after": probed(), "weights": plain(one.weights())}


def lived(config: str, identity: RunIdentity, late_probe_from: int | None) -> str:
    """A rank's whole life; why it ended."""
    settings = TrainerConfig.model_validate_json(config)
    health = Health(step_timeout_s=settings.step_timeout_s)
    try:
        return run_rank(settings, identity, TOKEN, health, late_probe_from=late_probe_from).reason
    finally:
        disconnect()
