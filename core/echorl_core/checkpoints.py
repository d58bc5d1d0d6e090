"""The joint checkpoint manifest: what "committed" means, and which checkpoints count.

A checkpoint is committed when ``manifest.json`` is there and every file that it names has the size and
sha256 that it says. The orchestrator alone writes manifests, last and atomically.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.rundir import RunDirectory, write_file
from echorl_core.wire.reports import Part

MANIFEST_NAME = "manifest.json"
NO_HISTORY = hashlib.sha256(b"echorl").hexdigest()


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Names everything that a run can be resumed from at ``step``."""

    schema: int = 1
    run_uid: str
    attempt: int
    step: int
    policy_version: int
    num_ranks: int
    committed_at: str
    """When it was committed, in ISO 8601 and UTC."""
    history: str
    """``next_history`` over the digests of batches 1..step: equal histories trained equal batches."""
    parts: list[Part]

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


class Damage(Exception):
    """A checkpoint's manifest or one of its files is not what was committed."""


@dataclass(frozen=True)
class Committed:
    """A checkpoint whose manifest was read; its files may not have been verified yet."""

    step: int
    folder: Path
    manifest: CheckpointManifest


def next_history(history: str, batch_digest: str) -> str:
    """Extend the chain by one trained batch."""
    return hashlib.sha256(f"{history}{batch_digest}".encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def part_of(folder: Path, file: Path, role: str, rank: int) -> Part:
    """Describe a written checkpoint file."""
    return Part(
        role=role,
        rank=rank,
        file=str(file.relative_to(folder)),
        size=file.stat().st_size,
        sha256=sha256_of(file),
    )


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Commit a checkpoint: after this returns it counts."""
    write_file(folder / MANIFEST_NAME, msgspec.json.format(msgspec.json.encode(manifest), indent=2))


def read_manifest(folder: Path) -> CheckpointManifest | None:
    """The manifest of a checkpoint folder; None if it was never committed.

    Raises:
        Damage: the manifest is there but unreadable.
    """
    try:
        return msgspec.json.decode(read_capped(folder / MANIFEST_NAME, MAX_JSON_BYTES), type=CheckpointManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Damage(f"{folder / MANIFEST_NAME}: unreadable: {error}") from error


def verify(folder: Path, manifest: CheckpointManifest) -> None:
    """Check every file that a manifest names.

    Raises:
        Damage: names the first file that is missing, truncated or altered.
    """
    for part in manifest.parts:
        path = folder / part.file
        if Path(part.file).is_absolute() or ".." in Path(part.file).parts:
            raise Damage(f"{path}: outside the checkpoint")
        if not path.is_file():
            raise Damage(f"{path}: missing")
        if (size := path.stat().st_size) != part.size:
            raise Damage(f"{path}: {size} bytes, {part.size} were committed")
        if sha256_of(path) != part.sha256:
            raise Damage(f"{path}: content differs from what was committed")


def committed(run: RunDirectory) -> tuple[list[Committed], list[str]]:
    """Checkpoints with a readable manifest, ascending, and a sentence for each that has an unreadable one."""
    checkpoints, problems = [], []
    for step, folder in run.checkpoint_steps():
        try:
            manifest = read_manifest(folder)
        except Damage as damage:
            problems.append(str(damage))
            continue
        if manifest is not None:
            checkpoints.append(Committed(step, folder, manifest))
    return checkpoints, problems


def to_keep(steps: list[int], keep_last: int, keep_every: int | None) -> set[int]:
    """Which committed steps stay: the newest ``keep_last``, and every multiple of ``keep_every``."""
    kept = set(sorted(steps)[-keep_last:])
    if keep_every is not None:
        kept |= {step for step in steps if step % keep_every == 0}
    return kept
