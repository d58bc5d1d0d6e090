"""Exports of the weights alone, for people: made beside the loop from a published version, by the ranks that have it.

    RUN/exports/step_000050/    a Hugging Face model folder; of an adapter its two files in PEFT's form

A folder is written under a temporary name, synced and renamed, so what is there is whole. Each rank writes its own
files; the first one makes the folder, and renames it once all have said that theirs are there. One export is under way
at a time. One that fails is logged and counted, and training goes on. A step that another attempt trains again is
replaced.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from echorl_core.checkpoints import to_keep
from echorl_core.faults import fault_point
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory, sync_file, sync_folder
from echorl_trainer.background import Background
from echorl_trainer.health import Health
from echorl_trainer.publication import Publication
from echorl_trainer.sharing import Sharers
from echorl_trainer.weights import write_version

log = structlog.get_logger()


class Exporter:
    """Writes the weights of every n-th step, and keeps the newest."""

    def __init__(
        self,
        run: RunDirectory,
        model_path: Path,
        *,
        every: int,
        keep_last: int,
        health: Health,
        deadline_s: float,
        sharers: Sharers | None = None,
        replacements: int = 0,
    ) -> None:
        """``model_path``: the start model, for config and tokenizer. ``deadline_s`` bounds the wait for an export.

        ``replacements``: how often the gang lost a pod, which may still write: not where this one does.

        ``sharers``: the ranks that have a version among them, in a group for exports alone; None: this one has it.
        """
        self._sharers, self._suffix = sharers or Sharers(), f"_r{replacements}" if replacements else ""
        self._run, self._model_path, self._every, self._keep_last = run, model_path, every, keep_last
        self._metrics, self._progress = health.metrics, health.progress
        self._background = Background(health, deadline_s=deadline_s)

    def begin(self, published: Publication) -> None:
        """Export the version if its step is due. Waits for an export under way."""
        step = published.version
        if step % self._every or step == 0:
            return
        self.wait()
        published.snapshot.use()
        self._background.start(f"export-{step}", lambda: self._export(published), awaited="an earlier export's files")

    def wait(self) -> None:
        """Return when no export is under way.

        Raises:
            TimeoutError: it took longer than the deadline.
        """
        self._background.wait()

    def _export(self, published: Publication) -> None:
        began, step = time.monotonic(), published.version
        target = self._run.export(step)
        try:
            published.result()
            self._whole(target, lambda folder: write_version(published.snapshot, self._model_path, folder))
            if self._sharers.is_first:
                self._tidy(step)
        except OSError as error:
            if self._sharers.is_first:
                log.error(
                    "weights could not be exported; training goes on", step=step, folder=str(target), error=str(error)
                )
                self._metrics.exports.labels("failed").inc()
            return
        finally:
            published.snapshot.release()
        if not self._sharers.is_first:
            return
        self._metrics.exports.labels("written").inc()
        self._metrics.export_seconds.set(time.monotonic() - began)
        log.info("weights exported", step=step, folder=str(target))

    def _tidy(self, step: int) -> None:
        """Later ones, which this attempt went back behind, are left alone, as are later checkpoints."""
        there = [other for other, _ in self._run.export_steps() if other <= step]
        for other in sorted(set(there) - to_keep(there, self._keep_last, None)):
            shutil.rmtree(self._run.export(other))
        self._progress.exported = [other for other, _ in self._run.export_steps()]

    def _whole(self, target: Path, write: Callable[[Path], list[Path]]) -> None:
        """Fill ``target``, in place of what has its name, so that a reader sees all or nothing; durable on return.

        ``write`` writes this rank's files, and tells them.

        Raises:
            OSError: some rank's could not be written; nothing of it is left.
        """
        fresh = target.with_name(f"{TEMPORARY_PREFIX}{target.name}{self._suffix}")

        def make() -> None:
            shutil.rmtree(fresh, ignore_errors=True)
            # Without those above: a run directory that was deleted must not come back in parts.
            fresh.parent.mkdir(exist_ok=True)
            fresh.mkdir()

        def fill() -> None:
            for file in write(fresh):
                sync_file(file)

        def finish() -> None:
            sync_folder(fresh)
            fault_point("trainer.mid_export")
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
            sync_folder(target.parent)

        try:
            self._by_first(make)
            self._by_all(fill)
            self._by_first(finish)
        except OSError:
            if self._sharers.is_first:
                shutil.rmtree(fresh, ignore_errors=True)
            raise

    def _by_first(self, work: Callable[[], None]) -> None:
        self._by_all(work if self._sharers.is_first else lambda: None)

    def _by_all(self, work: Callable[[], None]) -> None:
        """Have ``work`` done on every rank; returns, or raises OSError, on all of them alike."""
        problem = None
        try:
            work()
        except OSError as error:
            problem = str(error)
        for found in self._sharers.exchanged(problem):
            if found is not None:
                raise OSError(found)
