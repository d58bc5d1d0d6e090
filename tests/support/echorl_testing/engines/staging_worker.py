"""A worker's half of an engine that stages and applies weights, without vLLM."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from echorl_core.wire.engine import StageRequest, StageStatus
from echorl_core.wire.weights import PolicyId
from echorl_testing.engines.published import publish, published_tensors
from echorl_trainer.seeded import SeededShape
from echorl_vllm.staging import Bring
from echorl_vllm.validation import model_form
from echorl_vllm.weights import WorkerWeights, one_by_one

SHAPE = SeededShape(hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16)
RUN = "run-1"


class Worker:
    """The real thing, with a dictionary for a model."""

    def __init__(self, model: tuple[Path, bool], engine_dtype: str = "F32", bring: Bring = lambda _: False) -> None:
        """``model``: a folder, and whether the head is the embedding."""
        folder, tied = model
        self.model: dict[str, torch.Tensor] = {}
        self.refuses: str | None = None
        """Name of a tensor that cannot be loaded."""
        self.weights = WorkerWeights(
            form=lambda: model_form(folder, tied=tied, engine_dtype=engine_dtype), load=self._load, bring=bring
        )

    def _load(self, staged: Any) -> None:
        for name, tensor in one_by_one(staged):
            if name == self.refuses:
                raise RuntimeError(name)
            self.model[name] = tensor.clone()

    def stage(
        self,
        folder: Path,
        digest: str,
        *,
        version: int = 1,
        attempt: int = 1,
        deadline_s: float = 90.0,
        url: str | None = None,
    ) -> PolicyId:
        """Begin to stage what is published in ``folder``, or at ``url``."""
        url = url or f"file://{folder}/manifest.json"
        request = StageRequest(attempt=attempt, version=version, url=url, digest=digest, deadline_s=deadline_s)
        self.weights.stager.stage(request)
        return request.policy

    def staged(self, *args: Any, **options: Any) -> StageStatus:
        """Stage, wait for the end of it, and return the status."""
        self.stage(*args, **options)
        return self.settled()

    def settled(self) -> StageStatus:
        """The status, once staging has ended."""
        deadline = time.monotonic() + 120
        while (status := self.weights.stager.status()).state == "staging":
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return status


def published(
    model: tuple[Path, bool],
    folder: Path,
    *,
    version: int = 1,
    attempt: int = 1,
    change: Callable[[dict[str, torch.Tensor]], object] | None = None,
) -> str:
    """Publish weights that differ from the model's, ``change`` applied to them; the manifest's digest."""
    tensors = {name: tensor + 1 for name, tensor in published_tensors(model[0]).items()}
    if change is not None:
        change(tensors)
    return publish(folder, tensors, attempt=attempt, version=version, run_uid=RUN)
