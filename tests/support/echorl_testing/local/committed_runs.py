"""Run directories with committed checkpoints, written by hand."""

from pathlib import Path

from echorl_core import checkpoints
from echorl_core.checkpoints import CheckpointManifest
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory, write_folder


def identity(attempt: int, uid: str = "uid") -> RunIdentity:
    """Of an attempt of the run ``name``."""
    return RunIdentity("name", uid, attempt)


def commit(run: RunDirectory, step: int, attempt: int = 1, uid: str = "uid") -> Path:
    """A checkpoint of one rank, whole; the file of its part."""
    folder = run.checkpoint(step)
    file = folder / f"attempt_{attempt}" / "trainer" / "rank_0.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"weights %d of %d" % (step, attempt))
    manifest = CheckpointManifest(
        run_uid=uid,
        attempt=attempt,
        step=step,
        policy_version=step,
        num_ranks=1,
        committed_at="2026-01-01T00:00:00Z",
        history=checkpoints.NO_HISTORY,
        parts=[checkpoints.part_of(folder, file, "trainer", 0)],
    )
    checkpoints.write_manifest(folder, manifest)
    return file


def plant(run: RunDirectory) -> set[str]:
    """Everything that an attempt leaves behind; returns the paths that must go."""
    for step in (5, 6, 7):
        write_folder(run.batch(step), {"seal.json": b"{}", "rank_0.bin": b"stale"})
    write_folder(run.broadcast(1, 6), {"manifest.json": b"{}"})
    write_folder(run.broadcast(2, 4), {"manifest.json": b"{}"})
    (run.checkpoints / "step_000007" / "attempt_1").mkdir(parents=True)
    (run.checkpoints / "step_000007" / "attempt_1" / "rank_0.bin").write_bytes(b"half")
    half = run.root / "records" / "attempt_1"
    half.mkdir(parents=True)
    (half / ".tmp-steps.jsonl.1").write_text("x")
    (half / "steps.jsonl").write_text("{}")
    (run.root / ".tmp-report.html.77").write_text("x")
    (run.batches / ".tmp-step_000008.12").mkdir()
    (run.root / "stop").touch()
    (run.root / "spool" / "v_000003").mkdir(parents=True)
    write_folder(run.recorded_batch(1, 7), {"rank_0.bin": b"kept"})
    return {
        "batches/.tmp-step_000008.12",
        "batches/step_000005",
        "batches/step_000006",
        "batches/step_000007",
        "broadcasts/attempt_1",
        "broadcasts/attempt_2",
        "checkpoints/step_000007",
        "records/attempt_1/.tmp-steps.jsonl.1",
        ".tmp-report.html.77",
        "stop",
        "spool",
    }
