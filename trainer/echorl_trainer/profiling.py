"""Traces of chosen steps: what ran when on this rank's CPU and GPU, by ``torch.profiler``."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch
from torch.profiler import ProfilerActivity, profile

from echorl_core.rundir import RunDirectory, write_file

log = structlog.get_logger()


class Profiler:
    """Traces of one rank, ``RUN/profiles/attempt_N/step_SSSSSS.rank_R.json.gz``."""

    def __init__(
        self, run: RunDirectory, *, attempt: int, rank: int, device: torch.device, steps: Collection[int]
    ) -> None:
        self._run, self._attempt, self._rank, self._steps = run, attempt, rank, frozenset(steps)
        gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self._activities = [ProfilerActivity.CPU, *gpu]

    @contextmanager
    def tracing(self, step: int) -> Iterator[None]:
        """Trace the block if ``step`` is to be. A trace that cannot be written is logged, and training goes on."""
        if step not in self._steps:
            yield
            return
        with profile(activities=self._activities) as taken:
            yield
        target = self._run.profile(self._attempt, step, self._rank)
        try:
            with tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / target.name
                taken.export_chrome_trace(str(trace))
                write_file(target, trace.read_bytes(), within=self._run.root)
        except OSError as error:
            log.error("a trace could not be written; training goes on", file=str(target), error=str(error))
            return
        log.info("step traced", step=step, file=str(target), bytes=target.stat().st_size)
