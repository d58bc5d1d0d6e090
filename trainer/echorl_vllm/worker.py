"""Methods that vLLM mixes into its worker: ``--worker-extension-cls echorl_vllm.worker.WeightsExtension``.

They are called through vLLM's ``/collective_rpc``, which stops generation for as long as a call runs. So only ``apply``
does work here; ``stage`` starts a thread. Arguments and results are JSON text.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec
import torch

from echorl_core.faults import fault_point
from echorl_core.names import ENV_ADMIN_TOKEN, ENV_RUN_UID, HEADER_RUN, HEADER_TOKEN
from echorl_vllm import compat
from echorl_vllm.environment import spool_folder
from echorl_vllm.messages import Applied, ApplyReport, PolicyId, StageRequest, WorkerReport
from echorl_vllm.staging import NotStagedError, Stager

log = logging.getLogger("vllm.echorl.worker")


def _one_by_one(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    for item in tensors.items():
        yield item
        fault_point("engine.mid_apply")


class _WorkerWeights:
    """State of one worker: what is staged and what its model holds."""

    def __init__(self, worker: "WeightsExtension") -> None:
        run_uid = os.environ.get(ENV_RUN_UID)
        headers = {HEADER_RUN: run_uid, HEADER_TOKEN: os.environ.get(ENV_ADMIN_TOKEN)}
        self._worker = worker
        self._applied: Applied | None = None
        self.stager = Stager(
            spool=spool_folder(),
            run_uid=run_uid,
            headers={name: value for name, value in headers.items() if value},
            form=partial(compat.loaded_model_form, worker),
        )

    def report(self) -> str:
        return msgspec.json.encode(WorkerReport(stage=self.stager.status(), applied=self._applied)).decode()

    def apply(self, wanted: PolicyId) -> ApplyReport:
        try:
            tensors = self.stager.take(wanted)
        except NotStagedError as error:
            # A repeated request whose first answer was lost. Staged anew, the version would be loaded again.
            if self._applied is not None and self._applied.policy == wanted:
                return ApplyReport(applied=self._applied)
            return ApplyReport(error=str(error))
        started = time.monotonic()
        self._applied = None
        try:
            compat.load_tensors(self._worker, _one_by_one(tensors))
        except Exception as error:
            log.exception("applying %s failed, the model is half replaced", wanted)
            return ApplyReport(error=f"{type(error).__name__}: {error}", broken=True)
        seconds = round(time.monotonic() - started, 4)
        self._applied = Applied(attempt=wanted.attempt, version=wanted.version, digest=wanted.digest, seconds=seconds)
        fault_point("engine.applied")
        return ApplyReport(applied=self._applied)


class WeightsExtension:
    """Weight updates of one worker. vLLM constructs no object of this class, so state appears on first use."""

    _echorl_weights: _WorkerWeights | None = None

    def _echorl(self) -> _WorkerWeights:
        if self._echorl_weights is None:
            self._echorl_weights = _WorkerWeights(self)
        return self._echorl_weights

    def echorl_stage(self, request: str) -> str:
        """Begin to download and check a version (``StageRequest``); answers ``WorkerReport`` at once."""
        weights = self._echorl()
        weights.stager.stage(msgspec.json.decode(request, type=StageRequest))
        return weights.report()

    def echorl_status(self) -> str:
        """What is staged and applied: ``WorkerReport``."""
        return self._echorl().report()

    def echorl_apply(self, policy: str) -> str:
        """Put the staged ``PolicyId`` into the model; generation must be paused. Answers ``ApplyReport``."""
        report = self._echorl().apply(msgspec.json.decode(policy, type=PolicyId))
        return msgspec.json.encode(report).decode()

    def echorl_abort(self) -> str:
        """Drop what is staged; answers ``WorkerReport``."""
        weights = self._echorl()
        weights.stager.abort()
        return weights.report()
