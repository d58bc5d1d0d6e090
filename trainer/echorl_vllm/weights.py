"""What one worker has staged and what its model holds; how one becomes the other."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from echorl_core.faults import fault_point
from echorl_core.names import ENV_ADMIN_TOKEN, ENV_RUN_UID, HEADER_RUN, HEADER_TOKEN
from echorl_core.run_token import weights_key
from echorl_core.wire.engine import Applied
from echorl_core.wire.weights import PolicyId
from echorl_vllm.bell import ring
from echorl_vllm.environment import bell_path, spool_folder
from echorl_vllm.messages import ApplyReport, WorkerReport
from echorl_vllm.staging import Bring, NotStagedError, Staged, Stager
from echorl_vllm.validation import ModelForm

log = logging.getLogger("vllm.echorl.weights")

NamedTensors = Iterator[tuple[str, torch.Tensor]]


def one_by_one(staged: Staged) -> NamedTensors:
    """A staged version's tensors, in order."""
    for item in staged.tensors.items():
        yield item
        fault_point("engine.mid_apply")


class WorkerWeights:
    """State of one worker.

    Args:
        form: what the model consists of; called in the staging thread.
        load: puts a staged version into the model; if it raises, the model is half replaced.
        bring: brings what is checked to the device, as ``Stager`` says.
        device: the model's; None: a CPU.
    """

    def __init__(
        self,
        *,
        form: Callable[[], ModelForm],
        load: Callable[[Staged], None],
        bring: Bring = lambda _: False,
        device: torch.device | None = None,
    ) -> None:
        run_uid = os.environ.get(ENV_RUN_UID)
        token = os.environ.get(ENV_ADMIN_TOKEN)
        # Not the token itself: the address is one that this worker was told.
        headers = {HEADER_RUN: run_uid, HEADER_TOKEN: weights_key(token) if token else None}
        self._load = load
        self._applied: Applied | None = None
        self.stager = Stager(
            spool=spool_folder(),
            run_uid=run_uid,
            headers={name: value for name, value in headers.items() if value},
            form=form,
            bring=bring,
            device=device,
            ended=partial(ring, bell_path()),
        )

    def report(self) -> WorkerReport:
        """What is staged and applied."""
        return WorkerReport(stage=self.stager.status(), applied=self._applied)

    def apply(self, wanted: PolicyId) -> ApplyReport:
        """Replace the model's weights by what is staged, which must be exactly ``wanted``.

        Repeated after the answer was lost, it answers the same; staged anew, the version is loaded again.
        """
        try:
            staged = self.stager.take(wanted)
        except NotStagedError as error:
            if self._applied is not None and self._applied.policy == wanted:
                return ApplyReport(applied=self._applied)
            return ApplyReport(error=str(error))
        started = time.monotonic()
        self._applied = None
        try:
            self._load(staged)
        except Exception as error:
            log.exception("applying %s failed, the model is half replaced", wanted)
            return ApplyReport(error=f"{type(error).__name__}: {error}", broken=True)
        seconds = round(time.monotonic() - started, 4)
        self._applied = Applied(attempt=wanted.attempt, version=wanted.version, digest=wanted.digest, seconds=seconds)
        fault_point("engine.applied")
        return ApplyReport(applied=self._applied)
