"""What lies in a run directory when a run goes on: a damaged checkpoint, and what others have left."""

import json
import os
import shutil

from echorl_core.checkpoints import Committed
from echorl_core.rundir import TEMPORARY_PREFIX
from echorl_core.wire.reports import Part
from echorl_testing.local import history
from echorl_testing.local.local_run import LocalRun


def _shard(run: LocalRun) -> tuple[Committed, Part]:
    """The newest checkpoint, and a part of it that a rank wrote."""
    newest = history.committed(run.directory)[-1]
    return newest, next(
        part for part in newest.manifest.parts if part.role == "trainer" and part.file.endswith(".distcp")
    )


def truncated_shard(run: LocalRun) -> int:
    """Damage the newest checkpoint; its step."""
    newest, part = _shard(run)
    os.truncate(newest.folder / part.file, part.size // 2)
    return newest.step


def flipped_bit(run: LocalRun) -> int:
    """Damage the newest checkpoint; its step."""
    newest, part = _shard(run)
    with (newest.folder / part.file).open("r+b") as file:
        file.seek(part.size // 2)
        [byte] = file.read(1)
        file.seek(part.size // 2)
        file.write(bytes([byte ^ 1]))
    return newest.step


def planted_batch(run: LocalRun, step: int, **changes: object) -> str:
    """What attempt 1 sealed for its first step, as the batch of ``step``."""
    folder = run.directory.batch(step)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run.directory.recorded_batch(1, 1), folder)
    seal = json.loads((folder / "seal.json").read_text())
    (folder / "seal.json").write_text(json.dumps({**seal, "step": step, **changes}))
    return str(folder.relative_to(run.root))


def stale_leftovers(run: LocalRun) -> list[str]:
    """Batches and broadcasts of an older attempt and of another run, a half-written file, a stop marker."""
    resumed = history.committed_steps(run.directory)[-2]
    broadcasts = [run.directory.broadcast(1, resumed), run.directory.broadcast(9, 99)]
    for folder, uid in zip(broadcasts, (run.state()["uid"], "another-run"), strict=True):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"run_uid": uid, "version": resumed}))
    files = [run.directory.checkpoint(resumed) / f"{TEMPORARY_PREFIX}manifest.json.1", run.root / "stop"]
    for file in files:
        file.touch()
    return [
        planted_batch(run, resumed + 1),
        planted_batch(run, resumed + 2, run_uid="another-run"),
        *(str(folder.parent.relative_to(run.root)) for folder in broadcasts),
        *(str(file.relative_to(run.root)) for file in files),
    ]
