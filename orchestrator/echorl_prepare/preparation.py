"""The start of an attempt in a cluster, before GPUs are asked for.

    volume works -> model fetched -> model, renderer, hooks checked -> core prepare -> link to the model -> message

What only the cluster can know to be wrong is found here, all of it at once, before anything is changed. Run again for
the same attempt it finds what it did, and says the same.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from echorl_core import checkpoints
from echorl_core.attempts import OnExisting, Policy, Prepared, prepared_attempts, read_run
from echorl_core.config import PrepareConfig
from echorl_core.identity import RunIdentity
from echorl_core.names import ExitCode
from echorl_core.prepare import prepare
from echorl_core.problem import Problem
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory, sync_folder
from echorl_core.termination_message import (
    Preparation,
    SavedCheckpoint,
    SkippedCheckpoint,
    TerminationMessage,
    message_of_end,
)
from echorl_prepare.checks import code_problems, free_bytes, model_problems, room_problems, volume_problems
from echorl_prepare.hub import Hub, HubUnreachable, NoSuchModel

ROLE = "prepare"
_FEW = 5
_PUBLISHED_VERSIONS = 2


@dataclass(frozen=True)
class Resume:
    """Which checkpoint the attempt is to begin at."""

    policy: Policy = Policy.AUTO
    step: int | None = None
    on_existing: OnExisting = OnExisting.REFUSE


class BadInput(Exception):
    """The attempt cannot start; the message holds every problem."""


class Overtaken(Exception):
    """A later attempt of the run has begun."""

    def __init__(self, message: str, last_attempt: int) -> None:
        super().__init__(message)
        self.last_attempt = last_attempt


def prepared_attempt(config_file: Path, resume: Resume) -> TerminationMessage:
    """Prepare the attempt that the environment names; returns the message to end with.

    Raises:
        BadInput, Refused, Overtaken, HubUnreachable: why it was not done.
        OSError: the volume failed on the way.
    """
    try:
        identity = RunIdentity.from_environment(os.environ)
        config = PrepareConfig.model_validate_json(config_file.read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{config_file}: {error}") from error
    directory = RunDirectory(Path(config.run_dir))
    _refuse(list(volume_problems(directory.root)))
    if (last := _last_attempt(directory, identity.uid)) > identity.attempt:
        raise Overtaken(f"{directory.root}: attempt {last} has begun, attempt {identity.attempt} is over", last)
    model, commit = _checked_model(config, directory, identity)
    policy = _policy(directory, identity, resume.policy)
    prepared = prepare(directory, identity, policy=policy, step=resume.step, on_existing=resume.on_existing)
    *lines, outcome = prepared.lines()
    for line in lines:
        _tell(line)
    free = free_bytes(directory.root)
    copies = _PUBLISHED_VERSIONS if config.trainer.weight_mode == "disk" else 0
    if free is not None:
        _refuse(list(room_problems(directory, model, free, copies=copies)))
    if config.model.store is not None:
        _link(Path(config.model.path), model)
    done = _preparation(directory, prepared, model, commit)
    return replace(message_of_end(ROLE, ExitCode.OK, outcome, step=prepared.resume_step), prepared=done)


def _policy(run: RunDirectory, identity: RunIdentity, asked: Policy) -> Policy:
    """Never is about what others left: every attempt is told of it, and none throws away what the run itself made.

    Raises:
        Refused: what an attempt left is unreadable.
    """
    if asked is Policy.NEVER and any(prepared.run_uid == identity.uid for _, prepared in prepared_attempts(run)):
        _tell("the run has begun before: it goes on from its own checkpoints, whatever resume.policy Never says")
        return Policy.AUTO
    return asked


def _checked_model(config: PrepareConfig, run: RunDirectory, identity: RunIdentity) -> tuple[Path, str | None]:
    """The model's folder and commit, with everything about model and code checked.

    Raises:
        BadInput: with every problem.
        HubUnreachable: the model could not be fetched, and nothing else is wrong.
    """
    folder, commit, problems, unreachable = Path(config.model.path), None, list[Problem](), None
    try:
        if config.model.store is not None:
            folder, commit = _fetched(config, run, identity)
        problems += model_problems(folder, config)
    except NoSuchModel as error:
        problems.append(error.problem)
    except HubUnreachable as error:
        unreachable = error
    problems += code_problems(config)
    _refuse(problems)
    if unreachable is not None:
        raise unreachable
    _tell(f"model {config.model.name}{'' if commit is None else f'@{commit}'} in {folder}")
    return folder, commit


def _fetched(config: PrepareConfig, run: RunDirectory, identity: RunIdentity) -> tuple[Path, str]:
    source = config.model
    store, revision = Path(source.store or ""), source.revision or "main"
    hub = Hub(run=run, run_uid=identity.uid, store=store, name=source.name, revision=revision, tell=_tell)
    fetched = hub.fetch()
    return fetched.folder, fetched.commit


def _preparation(run: RunDirectory, prepared: Prepared, model: Path, commit: str | None) -> Preparation:
    committed = {checkpoint.step: checkpoint.manifest for checkpoint in checkpoints.committed(run)[0]}
    counting = [committed[sealed.step] for sealed in reversed(prepared.committed) if sealed.step in committed]
    return Preparation(
        resume_step=prepared.resume_step,
        checkpoint=prepared.checkpoint,
        committed=[
            SavedCheckpoint(step=manifest.step, committed_at=manifest.committed_at, size_bytes=manifest.size_bytes)
            for manifest in counting[:_FEW]
        ],
        skipped=[
            SkippedCheckpoint(step=skip.step, reason=skip.reason, damaged=skip.damaged)
            for skip in reversed(prepared.skipped)
        ][:_FEW],
        skipped_count=len(prepared.skipped),
        removed=prepared.removed[:_FEW],
        removed_count=len(prepared.removed),
        archived=prepared.archived,
        model_path=str(model),
        model_commit=commit,
    )


def _link(link: Path, folder: Path) -> None:
    """Let ``link`` lead to ``folder``, at once: relative, so that it holds wherever the volume is mounted."""
    target = os.path.relpath(folder, link.parent)
    if link.is_symlink() and str(link.readlink()) == target:
        return
    temporary = link.with_name(f"{TEMPORARY_PREFIX}{link.name}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(link)
    sync_folder(link.parent)


def _refuse(problems: Sequence[Problem]) -> None:
    if problems:
        raise BadInput("\n".join(str(problem) for problem in problems))


def _last_attempt(run: RunDirectory, uid: str) -> int:
    """The highest attempt of this run that left a folder; 0 in another run's directory."""
    record = read_run(run)
    return run.last_attempt() if record is None or record.uid == uid else 0


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
