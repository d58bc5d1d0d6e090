"""All of a rank's training state: collected, written, read back at any number of ranks, and digested."""

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from echorl_core.checkpoints import read_manifest
from echorl_trainer.collected import TRAINED, Collected
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks
from echorl_trainer.shard_writer import ShardWriter
from echorl_trainer.shards import local

log = structlog.get_logger()

TRAINER_FOLDER = "trainer"
ADAPTER_KEY = "adapter"
FIXED_KEY = "fixed"


class Unreadable(Exception):
    """A checkpoint that was to be resumed from cannot be read."""


class OtherRun(Unreadable):
    """A checkpoint does not fit what this run trains: a user has changed what no resume can take over."""


class OtherAdapter(OtherRun):
    """Another adapter, another base, or all weights."""


@dataclass(frozen=True)
class TrainState:
    """Everything of a rank that a later process needs to go on bit for bit.

    The schedule is a function of the step, and the learning rate last used stands in the optimizer's groups.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    ranks: Ranks
    fixed: Mapping[str, str] = field(default_factory=dict)
    """Settings that no resume may change, by their names in the manifest."""

    def collect(self, step: int) -> dict[str, Any]:
        """The state after ``step`` as nested dictionaries; tensors are shared with the model. Collective."""
        model, optimizer = self._collected.now()
        state = {
            "model": model,
            "optimizer": optimizer,
            "step": step,
            "random": {self._rank_key: self._random_state()},
            FIXED_KEY: dict(self.fixed),
        }
        return state if self.policy.adapter is None else {**state, ADAPTER_KEY: _described(self.policy)}

    @cached_property
    def _collected(self) -> Collected:
        return Collected(self.policy, self.optimizer)

    def restore(self, folder: Path) -> int:
        """Take over what ``save`` wrote to ``folder``, by any number of ranks; the step that it holds. Collective.

        Raises:
            Unreadable: names the folder and what is missing or broken in it.
            OtherRun: it does not fit what this run trains.
        """
        metadata = folder / ".metadata"
        if not metadata.is_file():
            raise Unreadable(f"{metadata}: missing; this checkpoint cannot be resumed from")
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        self._check_adapter(folder, saved)
        self._check_fixed(folder, saved)
        state = self.collect(step=-1)
        del state[FIXED_KEY]
        check_shapes(folder, state, saved)
        # Ranks that did not exist when the checkpoint was written keep the random state of their seed.
        if not any(key.startswith(f"random.{self._rank_key}.") for key in saved):
            log.warning("checkpoint was saved by fewer ranks; this rank's random state starts from the seed")
            del state["random"]
        self._load(state, folder)
        self._adopt(state)
        return int(state["step"])

    def take_over(self, copied: Mapping[str, Any]) -> None:
        """Take over what ``collect`` gave on as many ranks, each tensor this rank's part of it. Collective.

        Raises:
            Unreadable: it is of another model or optimizer.
        """
        state = self.collect(step=-1)
        places, found = (_tensors(one) for one in (state, copied))
        if {name: local(one).shape for name, one in places.items()} != {name: one.shape for name, one in found.items()}:
            raise Unreadable("the copy in memory is of another model or optimizer than this run's")
        with torch.no_grad():
            for name, place in places.items():
                local(place).copy_(found[name])
        self._adopt(copied)

    def _adopt(self, state: Mapping[str, Any]) -> None:
        """Take over what is no tensor of the model or the optimizer."""
        # Tensors were read in place: an optimizer that loads them brings moments into its parameters' precision and
        # memory. Of its groups' settings the manifest's hold, but for the rate of the step that was saved.
        for group, saved_group in zip(self.optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
            group["lr"] = saved_group["lr"]
        if "random" in state:
            self._set_random_state(state["random"][self._rank_key])

    def _load(self, state: dict[str, Any], folder: Path) -> None:
        """Fill ``state`` in place.

        Raises:
            Unreadable: a file is missing or broken.
        """
        try:
            load(state, storage_reader=FileSystemReader(folder))
        except (CheckpointException, OSError, RuntimeError) as error:
            raise Unreadable(f"{folder}: cannot be read: {reason(error, self.ranks.rank)}") from error

    def _check_fixed(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Settings that stand in the checkpoint are this run's; checkpoints of older versions have none.

        Raises:
            OtherRun: says what was found and what is accepted; nothing has been taken over.
        """
        found: dict[str, Any] = {name: "" for name in self.fixed if f"{FIXED_KEY}.{name}" in saved}
        if found:
            self._load({FIXED_KEY: found}, folder)
        for name, value in found.items():
            if value != self.fixed[name]:
                raise OtherRun(
                    f"{folder}: {name}: found {self.fixed[name]!r}, the run was started with {value!r}; "
                    "accepted is no change: another value takes a new run"
                )

    def _check_adapter(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """The checkpoint is of the kind that this run trains, and its adapter has the same form and the same base.

        Raises:
            OtherAdapter: says what was found and what is accepted; nothing has been taken over.
        """
        wanted = {} if self.policy.adapter is None else _described(self.policy)
        keys = [key for key in saved if key.startswith(f"{ADAPTER_KEY}.")]
        found: dict[str, Any] = dict.fromkeys((key.removeprefix(f"{ADAPTER_KEY}.") for key in keys), "")
        if bool(found) != bool(wanted):
            kinds = ("all weights", "an adapter")
            raise OtherAdapter(f"{folder}: holds {kinds[bool(found)]}, this run trains {kinds[bool(wanted)]}")
        if found:
            self._load({ADAPTER_KEY: found}, folder)
        for name, value in wanted.items():
            if found.get(name) != value:
                raise OtherAdapter(f"{folder}: adapter.{name}: found {found.get(name)}, this run has {value}")

    @property
    def _rank_key(self) -> str:
        return f"rank_{self.ranks.rank}"

    def _random_state(self) -> dict[str, Any]:
        state = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if self.ranks.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.ranks.device)
        return state

    def _set_random_state(self, state: dict[str, Any]) -> None:
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.ranks.device)


def _tensors(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    leaves = _leaves({"model": state["model"], "optimizer": state["optimizer"]})
    return {name: one for name, one in leaves if isinstance(one, torch.Tensor)}


def check_shapes(folder: Path, state: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Every tensor that this run trains, or its optimizer keeps, is in the checkpoint in the same shape, and no other.

    Args:
        folder: the checkpoint's.
        state: what is to be filled.
        saved: the checkpoint's description of each of its entries.

    Raises:
        OtherRun: names the first that differs.
    """
    wanted = {name[1:].replace("/", "."): tuple(one.shape) for name, one in _tensors(state).items()}
    found = {
        name: tuple(one.size)
        for name, one in saved.items()
        if isinstance(one, TensorStorageMetadata) and name.startswith(("model.", "optimizer."))
    }
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            has, trains = (side.get(name, "none") for side in (found, wanted))
            raise OtherRun(
                f"{folder}: {name}: the checkpoint has shape {has}, this run {trains}: another model (spec.model), "
                "another optimizer (spec.trainer.optimizer.type); accepted is what the run was started with"
            )


def _described(policy: Policy) -> dict[str, Any]:
    """What must be the same for a checkpoint of an adapter to fit."""
    assert policy.adapter is not None  # noqa: S101 - asked of adapters alone
    config = policy.adapter.config
    return {
        "rank": config.rank,
        "alpha": config.alpha,
        "target_modules": ", ".join(sorted(config.target_modules)),
        "base": policy.fingerprint,
    }


def save_state(state: TrainState, step: int, folder: Path) -> None:
    """Write the state and return when it is on disk; collective."""
    save(state.collect(step), storage_writer=ShardWriter(folder))


def state_digest(policy: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """sha256 over names, shapes and bytes of all weights that train and the whole optimizer state; collective.

    Equal on every rank, and at every number of ranks that trained to the same bits.
    """
    model, optim = get_state_dict(policy, optimizer, options=TRAINED)
    digest = hashlib.sha256()
    for name, value in sorted(_leaves({"model": model, "optimizer": optim})):
        if isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            digest.update(f"{name} {whole.dtype} {tuple(whole.shape)}\n".encode())
            digest.update(whole.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value!r}\n".encode())
    return digest.hexdigest()


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        yield name, value
        return
    for key, item in items:
        yield from _leaves(item, f"{name}/{key}")


def trainer_folder(checkpoint: Path) -> Path:
    """Where the trainer's state lies in a checkpoint's folder, or in an attempt's folder within it.

    Raises:
        Unreadable: neither a manifest that names it nor a trainer folder is there.
    """
    if (manifest := read_manifest(checkpoint)) is not None:
        metadata = next(
            (part.file for part in manifest.parts if part.file.endswith(f"/{TRAINER_FOLDER}/.metadata")), None
        )
        if metadata is None:
            raise Unreadable(f"{checkpoint}: its manifest names no {TRAINER_FOLDER}/.metadata")
        return checkpoint / Path(metadata).parent
    if (checkpoint / TRAINER_FOLDER).is_dir():
        return checkpoint / TRAINER_FOLDER
    if (checkpoint / ".metadata").is_file():
        return checkpoint
    raise Unreadable(f"{checkpoint}: found neither manifest.json nor {TRAINER_FOLDER}/; it is no checkpoint")


def reason(error: BaseException, rank: int) -> str:
    """One line for a save or load that failed on ``rank``, or the first failing rank's own error if it names one."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = min(error.failures.items())
        return f"rank {rank}: {type(cause).__name__}: {cause}"
    return f"rank {rank}: {type(error).__name__}: {error}"
