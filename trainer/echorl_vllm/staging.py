"""A worker's staged weights: downloaded and checked in a thread while generation goes on, applied later."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from echorl_core.faults import fault_point
from echorl_core.names import HEADER_ATTEMPT
from echorl_core.wire.engine import StageRequest, StageState, StageStatus
from echorl_core.wire.weights import PolicyId
from echorl_vllm.downloads import Limits, StageAbortedError
from echorl_vllm.reception import NotReceivedError, Reception
from echorl_vllm.spool import Fetched, fetch, locked, read_manifest
from echorl_vllm.validation import ModelForm, check_adapter_config, check_form, open_tensors, with_head

log = logging.getLogger("vllm.echorl.staging")


Bring = Callable[[Mapping[str, torch.Tensor]], bool]
"""Brings some of a version's checked tensors to the device, from any thread; False: they are loaded when applied."""


class NotStagedError(RuntimeError):
    """The version to apply is not what is staged."""


@dataclass(frozen=True)
class Staged:
    """A checked version: its tensors in host memory."""

    tensors: Mapping[str, torch.Tensor]
    folder: Path | None = None
    """In the spool, that they came from; None: they were broadcast."""
    on_device: bool = False
    """The worker's device has what it needs of them, so that putting them in place is a matter of a moment."""


@dataclass
class _Job:
    request: StageRequest
    limits: Limits
    started: float
    state: StageState = "staging"
    error: str | None = None
    size: int = 0
    seconds: float | None = None
    fetched: Fetched | None = None
    was_broadcast: bool = False
    staged: Staged | None = None


class Stager:
    """Holds at most one version, staged or being staged. Methods may be called from any thread and never wait."""

    def __init__(
        self,
        *,
        spool: Path,
        run_uid: str | None,
        headers: Mapping[str, str],
        form: Callable[[], ModelForm],
        bring: Bring = lambda _: False,
        device: torch.device | None = None,
        ended: Callable[[], object] = lambda: None,
    ) -> None:
        """``bring``: for one version at a time on a host, all its tensors at once or each as it comes.

        ``device``: the model's, which says what carries broadcasts; None: a CPU.
        ``ended`` is called whenever staging has ended, well or not; it must not wait or raise.
        """
        self._spool, self._run_uid, self._headers = spool, run_uid, headers
        self._form, self._bring, self._ended = form, bring, ended
        self._device, self._reception = device or torch.device("cpu"), Reception()
        self._lock = threading.Lock()
        self._job: _Job | None = None

    def stage(self, request: StageRequest) -> StageStatus:
        """Begin to stage; the same version again, unless it failed, is left as it is. Another one takes its place."""
        with self._lock:
            job = self._job
            if job is not None and job.request.policy == request.policy and job.state != "failed":
                return self._status(job)
            if job is not None:
                job.limits.cancelled.set()
            now = time.monotonic()
            job = _Job(request=request, limits=Limits(deadline=now + request.deadline_s), started=now)
            self._job = job
            # A daemon: a download must never keep a worker alive that wants to end.
            threading.Thread(target=self._run, args=(job,), name="echorl-stage", daemon=True).start()
            return self._status(job)

    def status(self) -> StageStatus:
        """What is staged now."""
        with self._lock:
            return self._status(self._job)

    def abort(self) -> None:
        """Drop what is staged or being staged."""
        with self._lock:
            if self._job is not None:
                self._job.limits.cancelled.set()
            self._job = None

    def take(self, wanted: PolicyId) -> Staged:
        """Hand out what is staged of ``wanted`` and forget it.

        Raises:
            NotStagedError: something else, or nothing, is staged.
        """
        with self._lock:
            job = self._job
            if job is None or job.staged is None or job.request.policy != wanted:
                state = "nothing is staged" if job is None else f"{job.request.policy} is {job.state}"
                raise NotStagedError(f"{wanted} is not staged: {state}")
            self._job = None
            # A spool's file can be written to again once nobody has it.
            staged, job.staged = job.staged, None
            return staged

    @staticmethod
    def _status(job: _Job | None) -> StageStatus:
        if job is None:
            return StageStatus()
        return StageStatus(
            state=job.state,
            attempt=job.request.attempt,
            version=job.request.version,
            digest=job.request.digest,
            error=job.error,
            bytes=job.size,
            received_bytes=job.size if job.was_broadcast else 0 if job.fetched is None else job.fetched.received_bytes,
            broadcast=job.was_broadcast,
            delta="none" if job.fetched is None else job.fetched.delta,
            seconds=round(time.monotonic() - job.started if job.seconds is None else job.seconds, 4),
            in_place=job.staged is not None and job.staged.on_device,
        )

    def _run(self, job: _Job) -> None:
        staged: Staged | None = None
        error: str | None = None
        try:
            staged = self._download(job)
        except StageAbortedError as aborted:
            error = str(aborted)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            log.warning("staging %s failed: %s", job.request.policy, error)
        with self._lock:
            job.seconds = time.monotonic() - job.started
            job.error, job.state = error, "failed" if error else "staged"
            if job is self._job:
                job.staged = staged
            staged = None
        self._ended()

    def _download(self, job: _Job) -> Staged:
        request, limits = job.request, job.limits
        headers = {**self._headers, HEADER_ATTEMPT: str(request.attempt)}
        staged = None
        if request.broadcast:
            try:
                staged = self._received(job, headers)
            except NotReceivedError as error:
                log.warning("%s is fetched, not received by broadcast: %s", request.policy, error)
        if staged is None:
            staged = self._fetched(job, headers)
        limits.check("bringing it to the device")
        fault_point("engine.staged")
        return staged

    def _received(self, job: _Job, headers: Mapping[str, str]) -> Staged:
        """By broadcast; a version that the model cannot take is refused before anything is received."""
        request, limits = job.request, job.limits
        manifest, _ = read_manifest(request, run_uid=self._run_uid, headers=headers, limits=limits)
        form = self._form()
        check_form(manifest, form)
        if manifest.kind != "full":
            raise NotReceivedError("adapters are fetched, always")
        received = self._reception.receive(request, manifest, headers, limits, self._device)
        with locked(self._spool, limits):
            tensors = with_head(received, form)
            staged = Staged(tensors, on_device=self._bring(tensors))
        job.size, job.was_broadcast = sum(file.size for file in manifest.files), True
        return staged

    def _fetched(self, job: _Job, headers: Mapping[str, str]) -> Staged:
        request, limits = job.request, job.limits
        with locked(self._spool, limits):
            form = self._form()
            brought: list[bool] = []
            job.fetched = fetch(
                self._spool,
                request,
                run_uid=self._run_uid,
                headers=headers,
                limits=limits,
                accept=lambda manifest: check_form(manifest, form),
                use=lambda name, tensor: brought.append(self._bring(with_head({name: tensor}, form))),
            )
            folder, manifest = job.fetched.folder, job.fetched.manifest
            check_adapter_config(folder, form)
            tensors = with_head(open_tensors(folder, manifest), form)
            limits.check("checking the form")
            on_device = all(brought) if job.fetched.is_used else self._bring(tensors)
            staged = Staged(tensors, folder, on_device=on_device)
        job.size = sum(file.size for file in manifest.files)
        return staged
