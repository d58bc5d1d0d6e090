"""Layout of a run's directory, and writes that are either whole or absent.

RUN/run.json                         identity: uid, name, created
RUN/manifest.yaml                    the manifest as resolved
RUN/attempts/N/                      configs/, prepared.json, committed.json (checkpoints sealed at its start),
                                     goodput.json (what GPU time was for, over all attempts up to this one)
RUN/logs/attempt_N/                  one file per role process
RUN/batches/step_000012/             sealed batch: seal.json, orchestrator.bin, rank_0.bin ...
RUN/checkpoints/step_000010/         attempt_N/{trainer,weights,adapter,orchestrator}/..., manifest.json last; of a gang
                                     with pods in lost ones' places attempt_N/replaced_R/{trainer,weights,adapter}
RUN/exports/step_000050/             the weights alone, as a model folder or an adapter's
RUN/broadcasts/attempt_N/v_000012/   published weights (mode disk)
RUN/record/attempt_N/step_000012/    copies of sealed batches, never cleaned
RUN/records/attempt_N/               steps.jsonl, episodes.jsonl, evals.jsonl, updates.jsonl
RUN/records/attempt_N/episodes/      step_000012.parquet: every train episode of a step, where asked for
RUN/records/attempt_N/eval_episodes/ step_000012.ENVIRONMENT.parquet: every episode of an eval, where asked for
RUN/tensorboard/attempt_N/, wandb/   what the monitors write
RUN/tokens/attempt_N/                step_000050.rank_0.jsonl: what a step trained, token by token
RUN/profiles/attempt_N/              step_000012.rank_0.json.gz: traces of steps, where asked for
RUN/.model, RUN/model.json           in a cluster: link to the model's folder, and which commit it is
RUN/report.html, RUN/report.json
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_STEP = re.compile(r"^step_(\d+)$")
_ATTEMPT = re.compile(r"^attempt_(\d+)$")
TEMPORARY_PREFIX = ".tmp-"


def step_name(step: int) -> str:
    """Folder name of a step, sorted as text up to 999,999 steps."""
    return f"step_{step:06d}"


def numbered(folder: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    """Entries of ``folder`` whose name matches, with their number, ascending."""
    if not folder.is_dir():
        return
    entries = [(int(match[1]), path) for path in folder.iterdir() if (match := pattern.match(path.name))]
    yield from sorted(entries)


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; creates nothing by itself."""

    root: Path

    @property
    def identity_file(self) -> Path:
        """The file that says whose directory this is: the run's uid and name."""
        return self.root / "run.json"

    @property
    def manifest_file(self) -> Path:
        """The file of the manifest as it was resolved."""
        return self.root / "manifest.yaml"

    @property
    def batches(self) -> Path:
        """The folder of sealed batches."""
        return self.root / "batches"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, committed or being written."""
        return self.root / "checkpoints"

    @property
    def broadcasts(self) -> Path:
        """The folder of weights that are published through the shared volume."""
        return self.root / "broadcasts"

    @property
    def model_file(self) -> Path:
        """What the model's revision was resolved to."""
        return self.root / "model.json"

    def attempt(self, attempt: int) -> Path:
        """The folder of what one attempt was started with."""
        return self.root / "attempts" / str(attempt)

    def logs(self, attempt: int) -> Path:
        """The folder of one attempt's log files."""
        return self.root / "logs" / f"attempt_{attempt}"

    def records(self, attempt: int) -> Path:
        """Records that the orchestrator writes in one attempt."""
        return self.root / "records" / f"attempt_{attempt}"

    def episodes(self, attempt: int, step: int) -> Path:
        """Every train episode of a step, as Parquet."""
        return self.records(attempt) / "episodes" / f"{step_name(step)}.parquet"

    def eval_episodes(self, attempt: int, version: int, environment: str) -> Path:
        """Every episode of one environment's eval, as Parquet. Beside train episodes: a folder of each is one table."""
        return self.records(attempt) / "eval_episodes" / f"{step_name(version)}.{environment}.parquet"

    def recorded_batch(self, attempt: int, step: int) -> Path:
        """Copy of a sealed batch, for replay."""
        return self.root / "record" / f"attempt_{attempt}" / step_name(step)

    def exported_tokens(self, attempt: int, step: int, rank: int) -> Path:
        """What a rank trained at a step, token by token."""
        return self.root / "tokens" / f"attempt_{attempt}" / f"{step_name(step)}.rank_{rank}.jsonl"

    def profile(self, attempt: int, step: int, rank: int) -> Path:
        """The trace of a rank's step, as browsers' tools read it."""
        return self.root / "profiles" / f"attempt_{attempt}" / f"{step_name(step)}.rank_{rank}.json.gz"

    def batch(self, step: int) -> Path:
        """The folder of the batch that is sealed for ``step``."""
        return self.batches / step_name(step)

    def checkpoint(self, step: int) -> Path:
        """The folder of the checkpoint of ``step``, committed or not."""
        return self.checkpoints / step_name(step)

    def export(self, step: int) -> Path:
        """The folder of the weights alone after ``step``; there only as a whole."""
        return self.root / "exports" / step_name(step)

    def broadcast(self, attempt: int, version: int) -> Path:
        """The folder of one published policy version."""
        return self.broadcasts / f"attempt_{attempt}" / f"v_{version:06d}"

    def sealed_steps(self) -> list[tuple[int, Path]]:
        """List steps and folders of sealed batches that are whole, ascending."""
        return list(numbered(self.batches, _STEP))

    def checkpoint_steps(self) -> list[tuple[int, Path]]:
        """List steps and folders of checkpoints, committed or not, ascending."""
        return list(numbered(self.checkpoints, _STEP))

    def export_steps(self) -> list[tuple[int, Path]]:
        """List steps and folders of exports of the weights alone, ascending."""
        return list(numbered(self.root / "exports", _STEP))

    def last_attempt(self) -> int:
        """Highest attempt that left a folder; 0 if none."""
        folder = self.root / "attempts"
        if not folder.is_dir():
            return 0
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)

    def links(self) -> list[Path]:
        """Folders of the run's own that are links: what they lead to may be another run's, as in a copy."""
        names = ("attempts", "batches", "broadcasts", "checkpoints", "exports", "logs", "record", "records", "tokens")
        own = [self.root / name for name in names]
        below = [path for folder in own[:4] if folder.is_dir() for path in folder.iterdir()]
        return sorted(path for path in (*own, *below) if path.is_symlink())

    def recorded_attempts(self) -> list[tuple[int, Path]]:
        """List attempts and their folders under ``records/``, ascending."""
        return list(numbered(self.root / "records", _ATTEMPT))


def sync_file(file: Path) -> None:
    """Make a file's content durable."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, data: bytes, *, within: Path | None = None) -> None:
    """Write ``path`` so that a reader sees the old content or the new, never a part; durable on return.

    Folders above it are made. With ``within`` only those below that one, for who works in a run directory that others
    can delete: it must not come back in parts.

    Raises:
        FileNotFoundError: ``within`` is not there.
    """
    _make_parents(path, within)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{os.getpid()}")
    # Whatever has the name is of a process that is gone, or a link that somebody laid there: never written through.
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_folder(path: Path, files: dict[str, bytes], *, within: Path | None = None) -> None:
    """Write a folder with all its files, or nothing; replaces an existing folder; durable on return.

    Raises:
        FileNotFoundError: ``within`` is not there, as in ``write_file``.
    """
    _make_parents(path, within)
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, data in files.items():
            with (temporary / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(temporary)
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def _make_parents(path: Path, within: Path | None) -> None:
    if within is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    for name in reversed(path.relative_to(within).parents[:-1]):
        (within / name).mkdir(exist_ok=True)
