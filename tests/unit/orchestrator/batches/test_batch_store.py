from pathlib import Path

import msgspec
import pytest

from echorl_core import faults
from echorl_core.arrays import unpack
from echorl_core.checkpoints import CheckpointManifest, Damage, part_of, write_manifest
from echorl_core.rundir import RunDirectory, write_file
from echorl_core.wire.batch import RankBatch
from echorl_orchestrator.batches.batch_store import starting_state
from echorl_orchestrator.batches.sealing import SavedState
from echorl_orchestrator.failures import BadInputError
from echorl_testing.orchestrator.sealed import (
    identity,
    parts_report,
    prepared,
    saved_state,
    seal_step,
    store_of,
    write_parts,
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    prepared(RunDirectory(tmp_path))
    return RunDirectory(tmp_path)


def commit(run: RunDirectory, state: SavedState) -> None:
    """A checkpoint with this orchestrator state."""
    folder = run.checkpoint(state.step)
    path = folder / f"attempt_{state.attempt}" / "orchestrator" / "state.bin"
    write_file(path, msgspec.msgpack.encode(state))
    manifest = CheckpointManifest(
        run_uid=state.run_uid,
        attempt=state.attempt,
        step=state.step,
        policy_version=state.step,
        num_ranks=1,
        committed_at="",
        history=state.history,
        parts=[part_of(folder, path, "orchestrator", 0), write_parts(run, state.step, attempt=state.attempt)],
    )
    write_manifest(folder, manifest)


def test_a_sealed_batch_is_served_by_a_successor_byte_for_byte(run: RunDirectory) -> None:
    store = store_of(run.root)
    seal_step(store, 1, ranks=2)
    before = [store.rank_file(1, rank).read_bytes() for rank in range(2)]
    successor = store_of(run.root)
    assert successor.newest == 1
    assert [successor.rank_file(1, rank).read_bytes() for rank in range(2)] == before
    assert [unpack(data, RankBatch).rank for data in before] == [0, 1]
    assert successor.seal(1) == store.seal(1)


def test_batches_of_another_attempt_are_not_served(run: RunDirectory) -> None:
    seal_step(store_of(run.root), 1)
    assert store_of(run.root, attempt=2).newest is None


@pytest.mark.parametrize(("point", "sealed"), [("before_seal", None), ("recorded", None), ("after_seal", 1)])
def test_a_crash_leaves_a_whole_batch_or_none_and_never_one_without_its_record(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, point: str, sealed: int | None
) -> None:
    monkeypatch.setenv("ECHORL_FAULTS", f"orchestrator.{point}=raise")
    monkeypatch.setattr(faults, "_passages", type(faults._passages)())
    with pytest.raises(faults.InjectedFault):
        seal_step(store_of(run.root, record=True), 1)
    assert store_of(run.root).newest == sealed
    assert run.recorded_batch(1, 1).exists() == (point != "before_seal")
    step, state = starting_state(run, identity(), store_of(run.root))
    assert step == 0
    assert (state.step if state else None) == sealed


def test_what_a_crash_left_half_written_is_removed(run: RunDirectory) -> None:
    halves = [run.batches / ".tmp-step_000001.7", run.recorded_batch(1, 1).with_name(".tmp-step_000001.7")]
    for half in halves:
        half.mkdir(parents=True)
        (half / "seal.json").touch()
    assert store_of(run.root, record=True).newest is None
    assert not any(half.exists() for half in halves)


def test_recorded_batches_are_copies_that_stay(run: RunDirectory) -> None:
    store = store_of(run.root, record=True)
    seal_step(store, 1)
    files = {path.name: path.read_bytes() for path in run.batch(1).iterdir()}
    store.release(1)
    assert not run.batch(1).exists()
    assert {path.name: path.read_bytes() for path in run.recorded_batch(1, 1).iterdir()} == files


def test_facts_of_a_released_batch_are_there_for_its_report(run: RunDirectory) -> None:
    store = store_of(run.root)
    for step in (1, 2):
        seal_step(store, step)
    successor = store_of(run.root)
    for one in (store, successor):
        one.release(2)
        assert one.counts(1) == one.counts(2) == {"batch/episodes": 1}
        assert one.counts(1) == {}
    assert store_of(run.root).counts(2) == {}


def test_release_takes_batches_up_to_the_step(run: RunDirectory) -> None:
    store = store_of(run.root)
    for step in (1, 2, 3):
        seal_step(store, step, checkpoint=step != 2)
    assert store.checkpoint_steps(3) == [1, 3]
    store.release(2)
    assert [step for step, _ in run.sealed_steps()] == [3]
    assert store.seal(2) is None
    assert sorted(path.name for path in run.batches.iterdir()) == ["step_000003"]


def test_a_fresh_attempt_has_no_state(run: RunDirectory) -> None:
    assert starting_state(run, identity(), store_of(run.root)) == (0, None)


def test_an_attempt_that_was_not_prepared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="attempt 1 of this run was not prepared"):
        starting_state(RunDirectory(tmp_path), identity(), store_of(tmp_path))


def test_a_new_attempt_starts_from_the_prepared_checkpoint_alone(run: RunDirectory) -> None:
    commit(run, saved_state(4))
    commit(run, saved_state(8))
    prepared(run, 2, step=4)
    step, state = starting_state(run, identity(2), store_of(run.root, 2))
    assert (step, state) == (4, saved_state(4))


def test_the_newest_of_batches_and_own_checkpoints_counts(run: RunDirectory) -> None:
    commit(run, saved_state(4))
    prepared(run, 2, step=4)
    store = store_of(run.root, 2)
    state = seal_step(store, 5, attempt=2)
    assert starting_state(run, identity(2), store_of(run.root, 2)) == (4, state)
    # Committed, its batch released, nothing sealed since: the checkpoint is the newest.
    commit(run, state)
    store.release(5)
    assert starting_state(run, identity(2), store_of(run.root, 2)) == (4, state)


def test_a_damaged_state_is_not_resumed_from(run: RunDirectory) -> None:
    commit(run, saved_state(4))
    (run.checkpoint(4) / "attempt_1/orchestrator/state.bin").write_bytes(b"x")
    prepared(run, 2, step=4)
    with pytest.raises(Damage, match=r"state.bin: 1 bytes"):
        starting_state(run, identity(2), store_of(run.root, 2))


def test_a_checkpoint_that_vanished_is_an_error(run: RunDirectory) -> None:
    parts_report(run, 4)
    prepared(run, 2, step=4)
    with pytest.raises(Damage, match="no readable manifest"):
        starting_state(run, identity(2), store_of(run.root, 2))
