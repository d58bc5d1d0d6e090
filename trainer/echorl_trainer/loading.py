"""The start model on every rank: made on the meta device, sharded, then each rank reads its own rows from safetensors.

    shapes on meta -> adapter -> shards -> rows of every tensor: file -> dtype of the parameter -> device

So a rank's host memory holds one tensor's rows at a time, and where several stored tensors make one parameter, those.
Which tensor of a folder is which parameter is transformers' to say, as it is when a folder is loaded whole.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from echorl_core.config import ModelConfig
from echorl_trainer.attention import choose_kernel
from echorl_trainer.experts import has_experts, refuse_undivided, stored_buffers
from echorl_trainer.grouped_products import choose_products
from echorl_trainer.lora import attach, draw_adapter, store_frozen
from echorl_trainer.model import Checkpointing, Policy, fill_buffers, meta_policy, refuse_unshared
from echorl_trainer.model_folder import stored_tensor, tensor_files
from echorl_trainer.parallel import Ranks, shard
from echorl_trainer.reference import check_against_reference
from echorl_trainer.shards import local, rows_of, shard_group

log = structlog.get_logger()

_SAMPLED = 256
"""Values of each tensor that a fingerprint looks at, at least."""


def start_policy(
    config: ModelConfig,
    ranks: Ranks,
    *,
    seed: int,
    compile: bool = False,  # noqa: A002 - the config's word
    activation_checkpointing: Checkpointing = "none",
) -> Policy:
    """The model that ``config`` names, sharded over the ranks, with the adapter that trains, if one does; collective.

    ``seed`` draws the adapter, and starts torch's generator for whatever draws from it later.

    Raises:
        ValueError: the model is of a kind not supported yet, cannot be read, or lacks weights.
    """
    torch.manual_seed(seed)
    policy = meta_policy(config)
    check_against_reference(policy.model.config)
    compute_dtype: torch.dtype = getattr(torch, config.dtype)
    refuse_unshared(policy.model.config, ranks.context_size)
    refuse_undivided(policy.model.config, ranks.expert_size, compiled=compile)
    choose_kernel(ranks.device, compute_dtype, policy.model.config, ranks.context_size)
    if has_experts(policy.model.config):
        choose_products(ranks.device, compute_dtype)
    if compile and compute_dtype == torch.float32 and has_experts(policy.model.config):
        raise ValueError("compile: found true, accepted for a mixture of experts in float32: false")
    if config.lora is not None:
        attach(policy, config.lora)
        store_frozen(policy, compute_dtype)
    shard(policy, ranks, compute_dtype, compile=compile, activation_checkpointing=activation_checkpointing)
    load_weights(policy, Path(config.path), ranks.device)
    if config.lora is not None:
        draw_adapter(policy, seed=seed)
    return policy


@dataclass(frozen=True)
class _Read:
    """What was noted of a parameter while this rank's rows of it were read."""

    name: str
    target: Tensor
    finite: Tensor
    """bool, 0-d."""
    samples: Tensor
    """float32: evenly spaced values of the whole tensor; zeros where they are another rank's."""


@torch.no_grad()
def load_weights(policy: Policy, folder: Path, device: torch.device) -> None:
    """Fill a policy that lies on meta, but for an adapter, with this rank's rows of the tensors in ``folder``.

    Collective where the policy is sharded. Sets ``policy.fingerprint``.

    Raises:
        ValueError: files cannot be read, lack weights, or hold others than config.json describes or values that are
            not finite.
    """
    policy.to_empty(device=device)
    policy.model.tie_weights()
    tensors: dict[str, Tensor] = policy.model.state_dict(keep_vars=True)
    wanted = {name: one for name, one in tensors.items() if policy.adapter is None or not one.requires_grad}
    read: dict[int, _Read] = {}
    try:
        for name, stored in _stored(policy.model, folder, wanted):
            _take(name, stored, wanted[name], read)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"model.path: {error}") from error
    missing = sorted(name for name, one in wanted.items() if id(one) not in read)
    if missing:
        raise ValueError(f"model.path: {folder} lacks weights: {', '.join(missing[:5])} ({len(missing)} in all)")
    _require_finite(list(read.values()), folder)
    fill_buffers(policy.model)
    named = (*policy.model.named_parameters(), *stored_buffers(policy.model).items())
    names = {id(one): name for name, one in named}
    policy.fingerprint = _fingerprint({names[key]: one for key, one in read.items() if key in names})


def _stored(model: Any, folder: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Any]]:
    """What the folder holds of wanted tensors: a handle or a stack, read where it is sliced, or a tensor made of some.

    A handle is good until the next one. Files are opened for each tensor anew, as pages of an open file count as ours.
    """
    transforms = get_model_conversion_mapping(model)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    files = tensor_files(folder)
    made: dict[str, tuple[WeightConverter, dict[str, list[str]]]] = {}
    for key in sorted(files, key=dot_natural_key):
        name, pattern = rename_source_key(key, renamings, converters, model.base_model_prefix, wanted)
        if name not in wanted and key in wanted:
            name, pattern = key, None
        if name not in wanted:
            continue
        if pattern is None:
            with safe_open(files[key], framework="pt") as file:
                yield name, file.get_slice(key)
        else:
            made.setdefault(name, (by_pattern[pattern], {}))[1].setdefault(pattern, []).append(key)
    for first, (converter, keys) in made.items():
        one = _Made(first, converter, keys, files, model)
        if one.is_stack:
            yield first, one
        else:
            yield from one.tensors().items()


@dataclass(frozen=True)
class _Made:
    """What transformers makes of several stored tensors. Of a stack, only those of the rows asked for are read."""

    name: str
    converter: WeightConverter
    keys: Mapping[str, Sequence[str]]
    """Stored tensors by the converter's patterns, in order."""
    files: Mapping[str, Path]
    model: Any

    @property
    def is_stack(self) -> bool:
        """Whether row n is made of each pattern's n-th tensor alone."""
        first, *others = self.converter.operations
        return isinstance(first, MergeModulelist) and first.dim == 0 and all(_keeps_rows(one) for one in others)

    def get_shape(self) -> list[int]:
        """Of a stack as the folder has it.

        Raises:
            ValueError: tensors are missing.
        """
        counts = {pattern: len(self.keys.get(pattern, ())) for pattern in self.converter.source_patterns}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{count} of {pattern}" for pattern, count in counts.items())
            raise ValueError(f"model.path: lacks weights: {self.name} is made of {found}, accepted are as many of each")
        return [next(iter(counts.values())), *self[:1].shape[1:]]

    def __getitem__(self, rows: slice) -> Tensor:
        return self.tensors(rows)[self.name]

    def tensors(self, rows: slice = slice(None)) -> dict[str, Tensor]:
        """What is made of each pattern's tensors ``rows``, by parameters' names.

        Raises:
            ValueError: they do not fit together.
        """
        converter = deepcopy(self.converter)
        for pattern, keys in self.keys.items():
            for key in keys[rows]:
                converter.add_tensor(self.name, key, pattern, partial(stored_tensor, self.files[key], key))
        try:
            found = converter.convert(self.name, model=self.model, config=self.model.config)
        except RuntimeError as error:
            raise ValueError(f"model.path: {self.name}: its stored tensors do not fit together: {error}") from error
        return {name: one[0] if isinstance(one, list) else one for name, one in found.items()}


def _keeps_rows(operation: Any) -> bool:
    return isinstance(operation, Concatenate) and operation.dim > 0


def _take(name: str, stored: Any, target: Tensor, read: dict[int, _Read]) -> None:
    """Copy this rank's rows of ``stored`` to ``target``, and note what is asked of them later.

    Raises:
        ValueError: another shape, or tied weights that differ.
    """
    shape = list(stored.shape) if isinstance(stored, Tensor) else stored.get_shape()
    if shape != list(target.shape):
        raise ValueError(f"model.path: {name}: found shape {shape}, config.json makes it {list(target.shape)}")
    rows, part = rows_of(target), local(target)
    values = stored[rows] if rows.stop > rows.start else torch.empty(part.shape)
    if (earlier := read.get(id(target))) is not None:
        if not torch.equal(part, values.to(part)):
            raise ValueError(
                f"model.path: found different values for {earlier.name} and {name}, accepted are the same: config.json "
                "ties them (tie_word_embeddings)"
            )
        return
    part.copy_(values)
    first = rows.start * (target.numel() // max(1, shape[0]))
    read[id(target)] = _Read(name, target, part.isfinite().all(), _samples(target.numel(), first, values.flatten()))


def _samples(total: int, first: int, values: Tensor) -> Tensor:
    """Every n-th of ``total`` values, of which ``values`` are those from ``first`` on, as float32; zeros for others."""
    spacing = max(1, total // _SAMPLED)
    samples = torch.zeros(-(-total // spacing))
    begin = -(-first // spacing)
    own = values[begin * spacing - first :: spacing]
    samples[begin : begin + len(own)] = own.float()
    return samples


def _require_finite(read: list[_Read], folder: Path) -> None:
    finite = torch.stack([one.finite for one in read]).tolist()
    if bad := [one.name for one, good in zip(read, finite, strict=True) if not good]:
        raise ValueError(f"model.path: {folder} holds values that are not finite: {', '.join(bad[:5])}")


def _fingerprint(read: Mapping[str, _Read]) -> str:
    """sha256 over names, shapes and evenly spaced values; collective, equal at every number of ranks."""
    named = sorted(read.items())
    target = named[0][1].target
    group = shard_group(target)
    # What each rank has whole one of them tells.
    silent = group is not None and dist.get_rank(group) > 0
    told = [
        torch.zeros_like(one.samples) if silent and shard_group(one.target) is None else one.samples for _, one in named
    ]
    # As integers: a value is one rank's alone, and a sum of floats would lose the sign of a negative zero.
    samples = torch.cat(told).view(torch.int32).to(target.device)
    if group is not None:
        dist.all_reduce(samples, group=group)
    digest = hashlib.sha256()
    parts = torch.split(samples.cpu().view(torch.float32), [len(one.samples) for _, one in named])
    for (name, one), values in zip(named, parts, strict=True):
        digest.update(f"{name} {tuple(one.target.shape)}\n".encode())
        digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()
