"""Sealed batches and checkpoint parts on disk, made by the orchestrator's own code from hand-made episodes."""

from pathlib import Path

import msgspec

from echorl_core.attempts import Policy, Prepared, claim_run
from echorl_core.checkpoints import NO_HISTORY, part_of
from echorl_core.identity import RunIdentity
from echorl_core.rundir import RunDirectory, write_file
from echorl_core.wire.reports import Part, PartsReport
from echorl_orchestrator.batches.batch_store import BatchStore
from echorl_orchestrator.batches.sealing import Place, SavedState, compose, extend, files, seal_of
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import CursorState, DeckState, Ticket
from echorl_testing.orchestrator.scripted_player import A, C, E, batch_config, outcome, sample

UID = "uid-1"


def identity(attempt: int = 1, uid: str = UID) -> RunIdentity:
    """Of the run that the helpers below write."""
    return RunIdentity("run", uid, attempt)


def prepared(run: RunDirectory, attempt: int = 1, *, step: int = 0) -> None:
    """What prepare leaves for an attempt that resumes from ``step``."""
    folder = str(run.checkpoint(step).relative_to(run.root)) if step else None
    record = Prepared(
        run_uid=UID,
        attempt=attempt,
        policy=Policy.AUTO,
        resume_step=step,
        checkpoint=folder,
        committed=[],
        skipped=[],
        removed=[],
        kept=[],
    )
    claim_run(run, "run", UID)
    write_file(run.attempt(attempt) / "prepared.json", msgspec.json.encode(record))


def store_of(root: Path, attempt: int = 1, *, record: bool = False) -> BatchStore:
    """A store that has looked at what is there."""
    store = BatchStore(RunDirectory(root), identity(attempt), record=record)
    store.load()
    return store


def saved_state(
    step: int, attempt: int = 1, history: str = NO_HISTORY, fixed: dict[str, str] | None = None
) -> SavedState:
    """A state with one environment's cursor at ``step``."""
    deck = DeckState(draws=step, cursors={"terminal": CursorState(next=step, returned=[], length=9)})
    return SavedState(
        run_uid=UID,
        attempt=attempt,
        step=step,
        deck=deck,
        groups=step,
        history=history,
        totals={},
        fixed=fixed or {},
    )


def seal_step(
    store: BatchStore,
    step: int,
    *,
    attempt: int = 1,
    ranks: int = 1,
    checkpoint: bool = True,
    last: bool = False,
    fixed: dict[str, str] | None = None,
) -> SavedState:
    """Seal a small batch; the state as of it."""
    episode = ReadyEpisode(
        outcome=outcome(samples=[sample([C, A, E], episode=f"e{step}", version=step - 1)]),
        group="g",
        ticket=Ticket("terminal", 0, 0, 0),
        advantage=1.0,
        verdict=Verdict(),
        version_low=step - 1,
        partial=False,
    )
    content = compose([episode], batch_config(num_ranks=ranks), frozenset({"terminal"}), step=step)
    assert content is not None
    place = Place(identity(attempt), step, checkpoint=checkpoint, last=last)
    seal = seal_of(place, content, {"batch/episodes": 1})
    state = extend(saved_state(step, attempt, fixed=fixed), content)
    store.write(seal, files(place, content, seal, state))
    return state


def write_parts(run: RunDirectory, step: int, rank: int = 0, *, attempt: int = 1, data: bytes = b"weights") -> Part:
    """One trainer file of a checkpoint."""
    folder = run.checkpoint(step)
    path = folder / f"attempt_{attempt}" / "trainer" / f"rank_{rank}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return part_of(folder, path, "trainer", rank)


def parts_report(run: RunDirectory, step: int, rank: int = 0, *, attempt: int = 1) -> PartsReport:
    """What a rank says after it has written its file."""
    return PartsReport(attempt=attempt, step=step, rank=rank, parts=[write_parts(run, step, rank, attempt=attempt)])
