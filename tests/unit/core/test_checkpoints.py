import hashlib
from pathlib import Path

import pytest

from echorl_core import checkpoints
from echorl_core.checkpoints import CheckpointManifest, Damage
from echorl_core.rundir import RunDirectory


def commit(run: RunDirectory, step: int, content: bytes = b"weights") -> Path:
    folder = run.checkpoint(step)
    file = folder / "attempt_1" / "rank_0.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    checkpoints.write_manifest(
        folder,
        CheckpointManifest(
            run_uid="u",
            attempt=1,
            step=step,
            policy_version=step,
            num_ranks=1,
            committed_at="2026-01-01T00:00:00Z",
            history=checkpoints.NO_HISTORY,
            parts=[checkpoints.part_of(folder, file, "trainer", 0)],
        ),
    )
    return file


def test_a_whole_checkpoint_verifies(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    commit(run, 5)
    found, problems = checkpoints.committed(run)
    assert [one.step for one in found] == [5]
    assert problems == []
    assert found[0].manifest.size_bytes == 7
    checkpoints.verify(found[0].folder, found[0].manifest)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda file: file.unlink(), "missing", id="deleted"),
        pytest.param(lambda file: file.write_bytes(b"weigh"), "5 bytes, 7 were committed", id="truncated"),
        pytest.param(lambda file: file.write_bytes(b"weightz"), "content differs", id="bit flipped"),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, damage, message: str) -> None:
    run = RunDirectory(tmp_path)
    file = commit(run, 5)
    damage(file)
    [found], _ = checkpoints.committed(run)
    with pytest.raises(Damage, match=message) as caught:
        checkpoints.verify(found.folder, found.manifest)
    assert "rank_0.bin" in str(caught.value)


def test_a_folder_without_manifest_is_not_committed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    (run.checkpoint(3) / "attempt_1").mkdir(parents=True)
    assert checkpoints.committed(run) == ([], [])


def test_an_unreadable_manifest_is_reported_and_skipped(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    commit(run, 2)
    commit(run, 4)
    (run.checkpoint(4) / checkpoints.MANIFEST_NAME).write_text('{"schema": 1, "step"')
    found, problems = checkpoints.committed(run)
    assert [one.step for one in found] == [2]
    assert "step_000004" in problems[0]


def test_history_depends_on_every_batch_and_on_order() -> None:
    def chain(*digests: str) -> str:
        history = checkpoints.NO_HISTORY
        for digest in digests:
            history = checkpoints.next_history(history, digest)
        return history

    assert chain("a", "b") == hashlib.sha256((chain("a") + "b").encode()).hexdigest()
    assert len({chain("a", "b"), chain("b", "a"), chain("a", "b", "b"), chain("a")}) == 4


@pytest.mark.parametrize(
    ("steps", "keep_last", "keep_every", "kept"),
    [
        ([5, 10, 15, 20], 2, None, {15, 20}),
        ([5, 10, 15, 20], 1, 10, {10, 20}),
        ([], 2, 10, set()),
        ([5], 3, None, {5}),
    ],
)
def test_retention(steps: list[int], keep_last: int, keep_every: int | None, kept: set[int]) -> None:
    assert checkpoints.to_keep(steps, keep_last, keep_every) == kept
