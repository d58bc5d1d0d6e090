"""A model of the hub, fetched once into the run's volume: name and revision to commit to folder.

    revision --hub, first time--> commit --RUN/model.json--> the same for every later attempt of the run
    STORE/<name>@<commit>/    whole or absent: filled under a temporary name, synced, renamed

A run's model never changes under it: a branch that moves on is resolved again only by another run.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from echorl_core.problem import Problem
from echorl_core.rundir import TEMPORARY_PREFIX, RunDirectory, sync_folder, write_file
from echorl_core.start_checks import ENV_HUB_TOKEN, MODEL_NAME

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_COMMIT = re.compile(r"[0-9a-f]{40}")
_WANTED = re.compile(r"[^/]+\.(json|safetensors|txt|model|jinja|tiktoken|md)|LICENSE[^/]*", re.IGNORECASE)
"""Files at the top of a repository that are fetched: safetensors, tokenizer, config. No pickles, no code."""
_WITH_SECRET = "with spec.model.tokenSecretName where it is private or gated"  # noqa: S105 - words
_AT_ONCE = 4
_TIMEOUT_S = 30.0


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's model was resolved to; stands in ``RUN/model.json``."""

    run_uid: str
    name: str
    revision: str
    commit: str


class NoSuchModel(Exception):
    """The hub does not have the model, or refuses it to us; the exception carries the problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class HubUnreachable(Exception):
    """The hub gave no usable answer; another try may."""


@dataclass(frozen=True)
class Fetched:
    """A model's folder in the store."""

    folder: Path
    commit: str


@dataclass(frozen=True)
class Hub:
    """One model for one run."""

    run: RunDirectory
    run_uid: str
    store: Path
    name: str
    revision: str
    tell: Callable[[str], None]
    """The function that gets lines for people."""

    def fetch(self) -> Fetched:
        """The model's folder, from the store if it is there.

        Raises:
            NoSuchModel: the hub does not know name or revision, or refuses them to us.
            HubUnreachable: no answer, and the store does not have it.
            OSError: the store cannot be written.
        """
        commit_before = self._known()
        if commit_before is not None and self._folder(commit_before).is_dir():
            return Fetched(self._folder(commit_before), commit_before)
        commit = commit_before or self._resolved()
        folder = self._folder(commit)
        if not folder.is_dir():
            self._download(commit, folder)
        record = Resolved(run_uid=self.run_uid, name=self.name, revision=self.revision, commit=commit)
        write_file(self.run.model_file, msgspec.json.format(msgspec.json.encode(record), indent=2))
        return Fetched(folder, commit)

    def _folder(self, commit: str) -> Path:
        return self.store / f"{self.name.replace('/', '--')}@{commit}"

    def _known(self) -> str | None:
        """The commit, if the hub need not be asked: the revision is one, or this run has asked before."""
        if _COMMIT.fullmatch(self.revision):
            return self.revision
        earlier = self._earlier()
        return earlier.commit if earlier is not None and earlier.run_uid == self.run_uid else None

    def _earlier(self) -> Resolved | None:
        """Read what this directory's run, or one before it, resolved the same name and revision to."""
        try:
            record = msgspec.json.decode(self.run.model_file.read_bytes(), type=Resolved)
        except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
            return None
        return record if (record.name, record.revision) == (self.name, self.revision) else None

    def _resolved(self) -> str:
        try:
            return self._info(self.revision)[0]
        except HubUnreachable as error:
            earlier = self._earlier()
            if earlier is None or not self._folder(earlier.commit).is_dir():
                raise
            self.tell(f"{error}; {self.name} stays at commit {earlier.commit}, which was fetched before")
            return earlier.commit

    def _info(self, revision: str) -> tuple[str, dict[str, int | None]]:
        """Ask the hub for the commit and the sizes of the files that are wanted."""
        with _translated(self.name, revision):
            info = self._api_info(revision)
        files = {file.rfilename: file.size for file in info.siblings or [] if _WANTED.fullmatch(file.rfilename)}
        if info.sha is None or not files:
            accepted = "a model with safetensors files at the top of its repository"
            raise NoSuchModel(Problem(MODEL_NAME, f"{self.name}@{revision} without files of a model", accepted))
        return info.sha, files

    def _api_info(self, revision: str) -> "ModelInfo":
        # Seconds to import, and not there in every environment of the command line.
        from huggingface_hub import HfApi  # noqa: PLC0415

        api = HfApi(token=_token())
        return api.model_info(self.name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)

    def _download(self, commit: str, folder: Path) -> None:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

        disable_progress_bars()
        _, sizes = self._info(commit)
        total = sum(size or 0 for size in sizes.values())
        self.tell(f"fetching {self.name}@{commit}: {len(sizes)} files, {total / 1e9:.2f} GB")
        # Of this run alone: another one may fetch the same model. What an interrupted try has is kept for the next.
        temporary = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}.{self.run_uid}")
        temporary.mkdir(parents=True, exist_ok=True)

        def get(file: str) -> None:
            with _translated(self.name, commit):
                hf_hub_download(self.name, file, revision=commit, local_dir=temporary, token=_token())

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            # In full, so that the first failure is raised.
            list(threads.map(get, sizes))
        _check(temporary, sizes)
        # The hub client's notes on the download.
        shutil.rmtree(temporary / ".cache", ignore_errors=True)
        _place(temporary, folder)


@contextmanager
def _translated(name: str, revision: str) -> Iterator[None]:
    """Raise our own errors in place of the hub client's."""
    import httpx2  # noqa: PLC0415 - comes with the hub client
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        yield
    except errors.GatedRepoError as error:
        raise NoSuchModel(
            Problem(MODEL_NAME, f"{name}, which is gated", f"a model that is open to us, {_WITH_SECRET}")
        ) from error
    except errors.RevisionNotFoundError as error:
        accepted = "a branch, tag or commit of the model"
        raise NoSuchModel(
            Problem("spec.model.revision", f"{revision}, which {name} does not have", accepted)
        ) from error
    except (errors.RepositoryNotFoundError, errors.DisabledRepoError, errors.HFValidationError) as error:
        accepted = f"a hub id, {_WITH_SECRET}, or a path"
        raise NoSuchModel(Problem(MODEL_NAME, f"{name}, which the hub does not know", accepted)) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            accepted = f"a model that is open to us, {_WITH_SECRET}"
            raise NoSuchModel(Problem(MODEL_NAME, f"{name}, which the hub refuses ({status})", accepted)) from error
        raise HubUnreachable(f"the hub answered {status} for {name}@{revision}") from error
    except (
        httpx2.HTTPError,
        errors.LocalEntryNotFoundError,
        errors.OfflineModeIsEnabled,
        errors.FileMetadataError,
    ) as error:
        raise HubUnreachable(f"the hub cannot be reached: {type(error).__name__}: {error}") from error


def _check(folder: Path, sizes: dict[str, int | None]) -> None:
    for file, size in sizes.items():
        came_bytes = (folder / file).stat().st_size if (folder / file).is_file() else None
        if came_bytes is None or came_bytes != (came_bytes if size is None else size):
            (folder / file).unlink(missing_ok=True)
            raise HubUnreachable(f"{file}: {came_bytes} of {size} bytes came")


def _place(temporary: Path, folder: Path) -> None:
    """Make a complete folder durable and give it its name; one that another run has placed meanwhile is as good."""
    for path in temporary.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_folder(temporary)
    try:
        temporary.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(folder.parent)


def _token() -> str | bool:
    """Read the hub's token from its variable alone; False keeps the client from looking in the user's home."""
    return os.environ.get(ENV_HUB_TOKEN) or False
