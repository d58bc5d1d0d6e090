"""Low-rank adapters on disk, in PEFT's format: which modules of a model get one, and which tensors that makes.

An adapter of rank r on a module with weight W, [out, in], is A, [r, in], and B, [out, r]:
W x becomes W x + alpha / r * B A x (LoRA, arXiv:2106.09685, equation 3).
"""

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from echorl_core.config import LoraConfig
from echorl_core.model_folder import own_tensors

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TENSOR_PREFIX = "base_model.model."
"""What PEFT writes before a module's name."""

_LAYERS = re.compile(r"(?:^|\.)layers\.\d+\.")
MIXED = ".mlp."
"""Within a layer's name, where a mixture of experts gets no adapter: experts, those that are shared, routers, and the
layers that have none."""
_EXPERTS = ".mlp.experts."
"""Within the names of a mixture's tensors, and of no other model's."""
_NAMED = 12

Shape = tuple[int, int]


class UnknownModule(ValueError):
    """A target names no module of the model."""

    def __init__(self, target: str, accepted: str) -> None:
        super().__init__(f"found {target!r}, accepted are {accepted}")
        self.target, self.accepted = target, accepted


def chosen_modules(modules: Iterable[str], targets: Sequence[str]) -> list[str]:
    """Modules that ``targets`` name, in the model's order; a target is a whole name, or the end of one from a dot on.

    Raises:
        UnknownModule: a target names none of ``modules``; says which there are.
    """
    layers = list(modules)
    for target in targets:
        if not any(_is_named(name, target) for name in layers):
            ends = sorted({name.rpartition(".")[2] for name in layers})
            example = f", or a whole name such as {layers[0]}" if layers else "there are none"
            raise UnknownModule(target, f"names of linear layers: {_some(ends)}{example}")
    return [name for name in layers if any(_is_named(name, target) for target in targets)]


def _is_named(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def linear_layers(folder: Path) -> dict[str, Shape]:
    """Linear layers of the transformer layers of the model in ``folder``: name to [out, in], from safetensors headers.

    Of a mixture of experts those of attention alone.

    Raises:
        ValueError: a file is not safetensors.
        OSError: a file cannot be read.
    """
    is_own, mixed = own_tensors(folder), False
    shapes: dict[str, Shape] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(file).items():
            shape = entry.get("shape", [])
            mixed = mixed or _EXPERTS in name
            if name.endswith(".weight") and len(shape) == 2 and _LAYERS.search(name) and is_own(name):
                shapes[name.removesuffix(".weight")] = (shape[0], shape[1])
    return {name: shape for name, shape in shapes.items() if not (mixed and MIXED in name)}


def _header(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        start = opened.read(8)
        try:
            header = json.loads(opened.read(struct.unpack("<Q", start)[0]))
        except (struct.error, ValueError, OverflowError, MemoryError) as error:
            raise ValueError(f"{file}: not a safetensors file: {error}") from error
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def tensor_shapes(modules: Mapping[str, Shape], rank: int) -> dict[str, Shape]:
    """Names and shapes of an adapter's tensors; ``modules``: those that have one, to [out, in]."""
    shapes: dict[str, Shape] = {}
    for name, (rows, columns) in modules.items():
        shapes[f"{TENSOR_PREFIX}{name}.lora_A.weight"] = (rank, columns)
        shapes[f"{TENSOR_PREFIX}{name}.lora_B.weight"] = (rows, rank)
    return shapes


def config_json(lora: LoraConfig) -> bytes:
    """``adapter_config.json``: the same bytes for equal settings. PEFT takes the base's path from whoever loads it."""
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        "target_modules": sorted(lora.target_modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
    return json.dumps(described, indent=2).encode() + b"\n"


def zero_adapter(shapes: Mapping[str, Shape], dtype: str) -> bytes:
    """A safetensors file of zeros; ``dtype``: float32 or bfloat16."""
    code, width = {"float32": ("F32", 4), "bfloat16": ("BF16", 2)}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (rows, columns) in sorted(shapes.items()):
        begin, end = end, end + rows * columns * width
        header[name] = {"dtype": code, "shape": [rows, columns], "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(end)
