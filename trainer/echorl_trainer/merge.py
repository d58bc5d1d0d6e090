"""Merges an adapter into the model that it was trained on: a Hugging Face model folder without adapters.

    python -m echorl_trainer.merge --adapter RUN/checkpoints/step_000010/attempt_1/adapter --model DIR --out DIR

Each weight with an adapter becomes W + alpha / rank * B A, computed in float32 and written in the adapter's dtype, as
is every other weight but biases of routers, which stay float32. One tensor is held at a time.
"""

import argparse
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from echorl_core import logs, names
from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TENSOR_PREFIX, tensor_shapes
from echorl_core.names import ExitCode
from echorl_core.rundir import TEMPORARY_PREFIX
from echorl_trainer.host_files import DTYPES, WEIGHTS, file_layouts
from echorl_trainer.model_folder import model_shapes, stored_tensor, tensor_files
from echorl_trainer.weights import complete_model

log = structlog.get_logger()


class Unmergeable(ValueError):
    """An adapter does not fit the model, or is none; says what was found and what is accepted."""


class _Settings(msgspec.Struct):
    r: int
    lora_alpha: float
    use_rslora: bool = False
    alpha_pattern: dict[str, float] | None = None

    def objection(self) -> str | None:
        """Why ``alpha / r`` is not the scale of every module, if it is not."""
        if self.r < 1:
            return f"r: found {self.r}, accepted: at least 1"
        if self.use_rslora:
            return "use_rslora: found true, accepted: false"
        return f"alpha_pattern: found {len(self.alpha_pattern)} entries, accepted: none" if self.alpha_pattern else None


@dataclass(frozen=True)
class LoadedAdapter:
    """An adapter's tensors by their names in its file; ``scaling`` is alpha / rank."""

    tensors: dict[str, Tensor]
    rank: int
    scaling: float

    @property
    def dtype(self) -> torch.dtype:
        """Precision of all its tensors."""
        return next(iter(self.tensors.values())).dtype

    def change(self, module: str) -> Tensor | None:
        """``alpha / rank * B A`` of a module, float32 [out, in]; None where it has no adapter."""
        name = f"{TENSOR_PREFIX}{module}"
        if f"{name}.lora_A.weight" not in self.tensors:
            return None
        down, up = (self.tensors[f"{name}.lora_{letter}.weight"].float() for letter in "AB")
        return self.scaling * (up @ down)


def load_adapter(folder: Path) -> LoadedAdapter:
    """Read an adapter in PEFT's format.

    Raises:
        Unmergeable: a file is missing or cannot be read, or holds what no adapter of a trainer has.
    """
    try:
        settings = msgspec.json.decode((folder / ADAPTER_CONFIG).read_bytes(), type=_Settings)
        tensors = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        accepted = f"a folder with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}"
        raise Unmergeable(f"{folder}: {error}; accepted: {accepted}") from error
    if not tensors:
        raise Unmergeable(f"{folder / ADAPTER_WEIGHTS}: holds no tensors")
    if (objection := settings.objection()) is not None:
        raise Unmergeable(f"{folder / ADAPTER_CONFIG}: {objection}")
    if odd := {tensor.dtype for tensor in tensors.values()} - DTYPES.keys():
        found, accepted = (", ".join(str(one).removeprefix("torch.") for one in each) for each in (odd, DTYPES))
        raise Unmergeable(f"{folder / ADAPTER_WEIGHTS}: dtype: found {found}, accepted: {accepted}")
    return LoadedAdapter(tensors, settings.r, settings.lora_alpha / settings.r)


def merge(adapter_folder: Path, model: Path, target: Path) -> None:
    """Write ``model`` with the adapter merged to ``target``, which appears complete or not at all.

    Raises:
        Unmergeable: the adapter is not one of this model; nothing was written.
        FileExistsError: ``target`` is there already.
    """
    if target.exists():
        raise FileExistsError(f"{target}: is there already; a merged model is only written to a new folder")
    adapter = load_adapter(adapter_folder)
    check_fits(adapter, model)
    staging = target.with_name(f"{TEMPORARY_PREFIX}{target.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        layouts = file_layouts(dict(model_shapes(model)), adapter.dtype, single_name=WEIGHTS)
        files = tensor_files(model)
        for layout in layouts:
            with (staging / layout.name).open("wb") as file:
                file.write(layout.header)
                for name in layout.shapes:
                    tensor = stored_tensor(files[name], name)
                    change = adapter.change(name.removesuffix(".weight"))
                    merged = tensor if change is None else tensor.to(adapter.dtype).float() + change
                    file.write(merged.to(layout.dtype).contiguous().view(-1).view(torch.uint8).numpy().data)
        complete_model(layouts, model, staging)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_fits(adapter: LoadedAdapter, model: Path) -> None:
    """Every tensor of the adapter belongs to a weight of ``model``, in the shape that it makes necessary.

    Raises:
        Unmergeable: names the tensor, what was found and what is accepted.
    """
    shapes = {name: tuple(shape) for name, shape in model_shapes(model)}
    for name, tensor in adapter.tensors.items():
        module = name.removeprefix(TENSOR_PREFIX).rpartition(".lora_")[0]
        weight = shapes.get(f"{module}.weight")
        if weight is None or len(weight) != 2:
            raise Unmergeable(f"{name}: the model in {model} has no weight of this module")
        wanted = tensor_shapes({module: (weight[0], weight[1])}, adapter.rank)
        if name not in wanted:
            raise Unmergeable(f"{name}: no tensor of an adapter; accepted are {', '.join(wanted)}")
        if tuple(tensor.shape) != wanted[name]:
            raise Unmergeable(f"{name}: shape {list(tensor.shape)}, the model makes it {list(wanted[name])}")
        if missing := wanted.keys() - adapter.tensors.keys():
            raise Unmergeable(f"{missing.pop()}: is missing beside {name}")


def main(arguments: list[str]) -> ExitCode:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m echorl_trainer.merge", description="Merge an adapter.")
    parser.add_argument("--adapter", type=Path, required=True, help="folder with the adapter, in PEFT's format")
    parser.add_argument("--model", type=Path, required=True, help="folder of the model that it was trained on")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not be there")
    chosen = parser.parse_args(arguments)
    logs.configure(f"{names.Role.TRAINER}-merge", attempt=0)
    try:
        merge(chosen.adapter, chosen.model, chosen.out)
    except (Unmergeable, OSError, SafetensorError) as error:
        log.error("not merged", error=str(error))
        return ExitCode.BAD_INPUT
    log.info("merged", out=str(chosen.out))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
