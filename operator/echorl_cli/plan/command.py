"""``echorl plan FILE``: what a run's GPUs must hold, whether they can, and what to change if not."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.local.machine import model_folder
from echorl_cli.manifest_file import InvalidManifest
from echorl_cli.plan.gpus import gpu_bytes, gpu_of_template
from echorl_cli.plan.model_shape import ModelShape
from echorl_cli.plan.needs import Needs, needs_of
from echorl_cli.plan.table import engine_lines, trainer_lines
from echorl_cli.validate import ManifestArgument, SetOption, end_with, manifest_or_exit
from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.names import ExitCode
from echorl_core.start_checks import MODEL_NAME, context_problem, expert_problem
from echorl_manifest import EchoRLRun, Problem
from echorl_operator.children.node_network import warnings

_SHAPE_KEYS = tuple(key for key in ModelShape.__dataclass_fields__ if key != "windows")
_EXAMPLE = "--shape num_hidden_layers=36 --shape hidden_size=4096 ..."

GpuMemoryOption = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="AMOUNT", help="Memory of a GPU, such as 80GiB; else as node selectors say."),
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="KEY=NUMBER", help="A number of config.json, where the model is on a hub."),
]


def plan_command(
    file: ManifestArgument,
    overrides: SetOption = None,
    gpu_memory: GpuMemoryOption = None,
    shape: ShapeOption = None,
) -> None:
    """Say what a run's GPUs must hold, whether they can, and what to change if not. Starts nothing.

    It is arithmetic on the model's config.json and the manifest. Exit code 0: it fits, or no GPU's memory is known.
    1: it does not fit. 2: the manifest or an option is wrong.
    """
    run = manifest_or_exit(file, overrides)
    given = _given(gpu_memory)
    try:
        described, longest = _described(run, shape or [])
        shape_of_model = ModelShape.of_config(described)
    except ValueError as error:
        accepted = f"a folder with a config.json that names it, or {_EXAMPLE}"
        end_with(InvalidManifest(file, [Problem(MODEL_NAME, str(error), accepted)]))
    heads, parallel = shape_of_model.num_attention_heads, run.spec.trainer.parallel
    problems = [context_problem(heads, parallel.context)] if heads % parallel.context else []
    experts = shape_of_model.num_experts if shape_of_model.has_experts else 0
    if (problem := expert_problem(experts, parallel.expert)) is not None:
        problems.append(problem)
    if problems:
        end_with(InvalidManifest(file, problems))
    needs = needs_of(run, shape_of_model, longest)
    fits = _say(run, needs, given)
    raise typer.Exit(int(ExitCode.OK if fits else ExitCode.CRASH))


def _given(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    try:
        return gpu_bytes(text), "--gpu-memory"
    except ValueError:
        raise typer.BadParameter(f"--gpu-memory: found {text[:40]!r}, accepted is an amount such as 141GiB") from None


def _described(run: EchoRLRun, shape: list[str]) -> tuple[dict[str, object], int | None]:
    """What is known of the model, by the keys of config.json, and the longest sequence that it takes.

    Raises:
        ValueError: says what was found in place of it.
    """
    known: dict[str, object] = {}
    folder = model_folder(run.spec.model.name, os.environ)
    if folder is not None:
        known = _config(folder)
    elif not shape:
        raise ValueError(f"{run.spec.model.name}: no such folder, and not in the hub's cache")
    known |= dict(_shape_entry(entry) for entry in shape)
    longest = known.get("max_position_embeddings")
    return known, longest if isinstance(longest, int) and longest >= 1 else None


def _config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads(read_capped(folder / "config.json", MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"{folder} without a readable config.json") from None
    if not isinstance(config, dict):
        raise ValueError(f"{folder} with a config.json that is no mapping")
    return config


def _shape_entry(entry: str) -> tuple[str, object]:
    key, _, value = entry.partition("=")
    if key not in _SHAPE_KEYS:
        raise typer.BadParameter(f"--shape: found {entry[:60]!r}, accepted are KEY=NUMBER of {', '.join(_SHAPE_KEYS)}")
    if key == "tie_word_embeddings" and value in {"true", "false"}:
        return key, value == "true"
    if not (value.isascii() and value.isdigit()) or len(value) > 9:
        accepted = "true or false" if key == "tie_word_embeddings" else "a whole number"
        raise typer.BadParameter(f"--shape {key}: found {value[:40]!r}, accepted is {accepted}")
    return key, int(value)


def _say(run: EchoRLRun, needs: Needs, given: tuple[int, str] | None) -> bool:
    """Print the plan; whether all that is known fits."""
    shape = needs.shape
    active = f" ({shape.active_parameters / 1e9:.3g} B active)" if shape.has_experts else ""
    typer.echo(
        f"{run.spec.model.name}: {shape.parameters / 1e9:.3g} B parameters{active}, {shape.num_hidden_layers} layers "
        f"of width {shape.hidden_size}, vocabulary {shape.vocab_size:,}"
    )
    verdicts = []
    for lines, template in ((trainer_lines, run.spec.trainer.template), (engine_lines, run.spec.inference.template)):
        text, fits = lines(needs, given or gpu_of_template(template))
        typer.echo("\n" + text)
        verdicts.append(fits)
    if told := warnings(run.spec):
        typer.echo("\n" + "\n".join(told))
    return all(verdicts)
