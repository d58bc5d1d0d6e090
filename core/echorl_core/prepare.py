"""The start of every attempt: which step to resume from, and which leftovers must not be read.

Runs after the old attempt's writers are gone and before the new ones start. It removes sealed batches, broadcasts,
temporary files, stop markers and unfinished checkpoint parts; a committed checkpoint never.

Volumes do not fence, so each attempt seals a list of the checkpoints that count (``attempts/N/committed.json``).
The next attempt counts those, and what attempt N itself committed; a manifest that an older attempt writes later is
ignored, and so is one that lies beyond the step an attempt went back to.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from echorl_core import checkpoints
from echorl_core.attempts import (
    OnExisting,
    Policy,
    Prepared,
    Refused,
    Sealed,
    Skipped,
    as_json,
    claim_run,
    owner_of,
    prepared_attempts,
    read_prepared,
    read_run,
)
from echorl_core.checkpoints import MANIFEST_NAME, Committed, Damage, sha256_of
from echorl_core.identity import RunIdentity
from echorl_core.leftovers import archive, remove_leftovers
from echorl_core.rundir import RunDirectory, write_file


@dataclass(frozen=True)
class _Lineage:
    """Which manifests the attempt before this one leaves to count."""

    attempt: int
    """The latest prepared attempt; 0 if none."""
    sealed: frozenset[Sealed]
    went_back: frozenset[int]
    """Steps that policy FromStep was carried out for."""

    def objection(self, checkpoint: Committed, identity: RunIdentity) -> str | None:
        """Why a checkpoint does not count for ``identity``; None if it does."""
        manifest = checkpoint.manifest
        if manifest.run_uid != identity.uid:
            return f"of another run ({manifest.run_uid})"
        if manifest.step != checkpoint.step:
            return f"its manifest says step {manifest.step}"
        if manifest.attempt >= identity.attempt:
            return f"committed by attempt {manifest.attempt}, which had not begun"
        if self.attempt in (0, manifest.attempt) or _seal(checkpoint) in self.sealed:
            return None
        return f"committed by attempt {manifest.attempt} and not among those that attempt {self.attempt} began with"


def objection(run: RunDirectory, uid: str | None, policy: Policy) -> str | None:
    """Why a run may not start in this directory unless its content is archived; None if it may.

    Args:
        run: the directory; it need not exist.
        uid: of the run that wants it; None: whatever ``run.json`` says.
        policy: Never objects to any checkpoint with a manifest.

    Raises:
        Refused: ``run.json`` is unreadable, or a folder of the run is a link.
    """
    if links := run.links():
        link = f"{links[0]}: found a link to {links[0].readlink()}, which may be another run's"
        raise Refused(f"{link}; accepted: a folder of the run's own")
    record = read_run(run)
    committed, problems = checkpoints.committed(run)
    owners = {record.uid} if record else {checkpoint.manifest.run_uid for checkpoint in committed}
    if uid is not None and (foreign := sorted(owners - {uid})):
        name = f" ({record.name})" if record else ""
        return f"{run.root}: belongs to run {', '.join(foreign)}{name}, not to {uid}"
    if policy is Policy.NEVER and (committed or problems):
        steps = ", ".join(str(checkpoint.step) for checkpoint in committed) or "unreadable"
        return f"{run.checkpoints}: holds committed checkpoints (steps {steps}), and resume.policy is Never"
    return None


def prepare(
    run: RunDirectory,
    identity: RunIdentity,
    *,
    policy: Policy = Policy.AUTO,
    step: int | None = None,
    on_existing: OnExisting = OnExisting.REFUSE,
) -> Prepared:
    """Resolve the resume step of an attempt and remove what must not be read. Idempotent per attempt.

    ``policy`` is for a run's first attempt after a start by hand; restarts within it pass Auto.

    Args:
        run: the run directory.
        identity: the run and the attempt that starts.
        policy: where to begin.
        step: with FromStep, the step; 0 is the start.
        on_existing: for another run's directory, and for checkpoints under Never.

    Raises:
        Refused: the directory is another run's, checkpoints stand against Never, FromStep's checkpoint is not
            whole, or a later attempt has been prepared.
    """
    if (policy is Policy.FROM_STEP) != (step is not None):
        raise Refused(f"resume.step: found {step} with policy {policy}; a step belongs to FromStep alone")
    own = [number for number, prepared in prepared_attempts(run) if prepared.run_uid == identity.uid]
    if own and max(own) > identity.attempt:
        raise Refused(f"{run.root}: attempt {max(own)} has begun, attempt {identity.attempt} is over")
    done = read_prepared(run, identity.attempt)
    if done is not None and done.run_uid == identity.uid:
        return done
    # Whoever starts this attempt may have written its folder, but not if another run has.
    archived = _make_room(run, identity, policy, on_existing, keep_attempt=identity.attempt if done is None else None)
    claim_run(run, identity.name, identity.uid)
    lineage = _lineage(run, identity.attempt)
    once = policy is Policy.FROM_STEP and step in lineage.went_back
    chosen, sealed, skipped = _resolve(run, identity, lineage, None if once else step)
    folder = run.attempt(identity.attempt)
    write_file(folder / "committed.json", as_json(sealed))
    kept, _ = checkpoints.committed(run)
    prepared = Prepared(
        run_uid=identity.uid,
        attempt=identity.attempt,
        policy=policy,
        from_step=step,
        resume_step=chosen.step if chosen else 0,
        checkpoint=str(chosen.folder.relative_to(run.root)) if chosen else None,
        committed=sealed,
        skipped=skipped,
        removed=remove_leftovers(run),
        kept=[str(checkpoint.folder.relative_to(run.root)) for checkpoint in kept],
        archived=archived,
    )
    write_file(folder / "prepared.json", as_json(prepared))
    return prepared


def _make_room(
    run: RunDirectory, identity: RunIdentity, policy: Policy, on_existing: OnExisting, *, keep_attempt: int | None
) -> str | None:
    reason = objection(run, identity.uid, policy)
    if reason is None:
        return None
    if on_existing is OnExisting.REFUSE:
        raise Refused(f"{reason}. Use another directory, or set resume.onExisting to Archive to move it aside")
    return str(archive(run, owner_of(run), keep_attempt=keep_attempt).relative_to(run.root))


def _resolve(
    run: RunDirectory, identity: RunIdentity, lineage: _Lineage, step: int | None
) -> tuple[Committed | None, list[Sealed], list[Skipped]]:
    """The checkpoint to resume from (newest, or at ``step``), those that count up to it, and those passed over."""
    skipped = list(_unreadable(run))
    eligible = []
    for checkpoint in checkpoints.committed(run)[0]:
        reason = lineage.objection(checkpoint, identity)
        if reason is None:
            eligible.append(checkpoint)
        else:
            skipped.append(Skipped(step=checkpoint.step, reason=reason))
    if step is None:
        chosen, damaged = _newest_whole(eligible)
        skipped += damaged
    else:
        chosen = _at(run, eligible, step) if step > 0 else None
    limit = chosen.step if chosen else 0
    sealed = [_seal(checkpoint) for checkpoint in eligible if checkpoint.step <= limit]
    return chosen, sealed, sorted(skipped, key=lambda skip: skip.step)


def _newest_whole(eligible: list[Committed]) -> tuple[Committed | None, list[Skipped]]:
    damaged = []
    for checkpoint in reversed(eligible):
        try:
            checkpoints.verify(checkpoint.folder, checkpoint.manifest)
        except Damage as damage:
            damaged.append(Skipped(step=checkpoint.step, reason=str(damage), damaged=True))
            continue
        return checkpoint, damaged
    return None, damaged


def _at(run: RunDirectory, eligible: list[Committed], step: int) -> Committed:
    for checkpoint in eligible:
        if checkpoint.step != step:
            continue
        try:
            checkpoints.verify(checkpoint.folder, checkpoint.manifest)
        except Damage as damage:
            raise Refused(f"resume.step: checkpoint {step} is damaged: {damage}") from damage
        return checkpoint
    steps = ", ".join(str(checkpoint.step) for checkpoint in eligible) or "none"
    raise Refused(f"resume.step: no committed checkpoint of step {step} in {run.checkpoints}; there are: {steps}")


def _unreadable(run: RunDirectory) -> Iterator[Skipped]:
    for step, folder in run.checkpoint_steps():
        try:
            checkpoints.read_manifest(folder)
        except Damage as damage:
            yield Skipped(step=step, reason=str(damage), damaged=True)


def _lineage(run: RunDirectory, attempt: int) -> _Lineage:
    before = [(number, prepared) for number, prepared in prepared_attempts(run) if number < attempt]
    if not before:
        return _Lineage(0, frozenset(), frozenset())
    number, last = before[-1]
    went_back = {old.from_step for _, old in before if old.policy is Policy.FROM_STEP and old.from_step is not None}
    return _Lineage(number, frozenset(last.committed), frozenset(went_back))


def _seal(saved: Committed) -> Sealed:
    return Sealed(step=saved.step, attempt=saved.manifest.attempt, sha256=sha256_of(saved.folder / MANIFEST_NAME))
