"""The adapter of an engine on its disk: zeros at its start, from then on whatever was applied last.

vLLM knows the adapter by this folder. So whenever it reads the adapter again, it finds the one that it should hold.
"""

import os
import shutil
from pathlib import Path

from echorl_core.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    UnknownModule,
    chosen_modules,
    config_json,
    linear_layers,
    tensor_shapes,
    zero_adapter,
)
from echorl_core.config import ModelConfig

FOLDER = "adapter"
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM reserves room for; a smaller adapter is padded."""


def reserved_rank(rank: int) -> int:
    """The least rank of vLLM's that ``rank`` fits into.

    Raises:
        ValueError: there is none.
    """
    if fitting := [size for size in _RANKS if size >= rank]:
        return fitting[0]
    raise ValueError(f"model.lora.rank: found {rank}, accepted are up to {_RANKS[-1]}")


def write_start_adapter(folder: Path, model: ModelConfig) -> None:
    """Write an adapter of zeros in the form that ``model.lora`` gives it; what was there goes.

    Raises:
        ValueError: a target names no linear layer of the model, or its files cannot be read.
    """
    if model.lora is None:
        raise ValueError("model.lora: is not set, so there is no adapter to start with")
    try:
        layers = linear_layers(Path(model.path))
        chosen = chosen_modules(layers, model.lora.target_modules)
    except UnknownModule as error:
        raise ValueError(f"model.lora.target_modules: {error}") from error
    shapes = tensor_shapes({name: layers[name] for name in chosen}, model.lora.rank)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / ADAPTER_WEIGHTS).write_bytes(zero_adapter(shapes, model.dtype))
    (folder / ADAPTER_CONFIG).write_bytes(config_json(model.lora))


def install(source: Path, folder: Path) -> None:
    """Put the adapter in ``source`` in place of the one in ``folder``; every worker of a host may do it."""
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        fresh = folder / f".{name}.{os.getpid()}"
        shutil.copyfile(source / name, fresh)
        fresh.replace(folder / name)
