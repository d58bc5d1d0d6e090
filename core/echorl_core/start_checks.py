"""Checks of a start that one machine and the prepare pod of a cluster make alike, in the same words."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from echorl_core import import_check
from echorl_core.adapters import UnknownModule, chosen_modules, linear_layers
from echorl_core.capped import MAX_JSON_BYTES, read_capped
from echorl_core.model_folder import number_of_config
from echorl_core.names import ENV_ADMIN_TOKEN
from echorl_core.problem import Problem
from echorl_core.routing import expert_count, router_shape

MODEL_NAME = "spec.model.name"
ENV_HUB_TOKEN = "HF_TOKEN"  # noqa: S105 - the variable's name
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
_OUR_SECRETS = frozenset({ENV_ADMIN_TOKEN, ENV_HUB_TOKEN})
_IMPORT_DEADLINE_S = 120


def model_problems(folder: Path, max_model_len: int | None) -> Iterator[Problem]:
    """Yield what a model's folder lacks, and a ``max_model_len`` that is longer than the model takes."""
    if not (folder / "config.json").is_file():
        yield Problem(MODEL_NAME, f"{folder} without config.json", "a folder with config.json")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        yield Problem(
            MODEL_NAME, f"{folder} without a tokenizer", f"a folder with one of {', '.join(_TOKENIZER_FILES)}"
        )
    if missing := missing_weights(folder):
        yield Problem(MODEL_NAME, f"{folder} without {missing}", "a folder with all safetensors files")
    longest = longest_sequence(folder)
    if max_model_len is not None and longest is not None and max_model_len > longest:
        accepted = f"at most {longest} (max_position_embeddings of the model)"
        yield Problem("spec.model.maxModelLen", str(max_model_len), accepted)


def context_problems(folder: Path, context: int) -> Iterator[Problem]:
    """Yield that ``context`` ranks cannot have equal shares of the attention heads of the model in ``folder``."""
    heads = number_of_config(folder, "num_attention_heads")
    if heads is not None and heads % context:
        yield context_problem(heads, context)


def context_problem(heads: int, context: int) -> Problem:
    """What is told where ``context`` ranks cannot have equal shares of ``heads`` attention heads."""
    return Problem("spec.trainer.parallel.context", str(context), f"a divisor of the model's {heads} attention heads")


def expert_problems(folder: Path, expert: int) -> Iterator[Problem]:
    """Yield that ``expert`` ranks cannot have equally many experts of the model in ``folder``."""
    if (problem := expert_problem(expert_count(folder), expert)) is not None:
        yield problem


def expert_problem(experts: int, expert: int) -> Problem | None:
    """What is told where ``expert`` ranks cannot have equally many of a model's experts; 0: it has none."""
    if expert == 1 or (experts and experts % expert == 0):
        return None
    accepted = f"a divisor of the model's {experts} experts" if experts else "1: the model has no experts"
    return Problem("spec.trainer.parallel.expert", str(expert), accepted)


def replay_problems(folder: Path) -> Iterator[Problem]:
    """Yield that the model in ``folder`` has no routers whose choices could be replayed."""
    if router_shape(folder) is None:
        yield Problem("spec.trainer.routerReplay", "true", "false: the model has no experts")


def adapter_problems(folder: Path, targets: Sequence[str]) -> Iterator[Problem]:
    """Yield the targets of an adapter that the model in ``folder`` has no linear layer for."""
    try:
        chosen_modules(linear_layers(folder), targets)
    except UnknownModule as error:
        yield Problem("spec.model.lora.targetModules", f'"{error.target}"', error.accepted)
    except (OSError, ValueError) as error:
        yield Problem(MODEL_NAME, f"{folder}: {error}", "a folder with readable safetensors files")


def missing_weights(folder: Path) -> str | None:
    """Say what a model folder lacks of its weights; None if they are all there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None if any(folder.glob("*.safetensors")) else "safetensors files"
    try:
        shards = sorted(set(json.loads(read_capped(index, MAX_JSON_BYTES))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return f"a readable {index.name}"
    missing = [name for name in shards if not (folder / name).is_file()]
    return ", ".join(missing) or None


def import_problems(
    wanted: Mapping[str, str], python_path: Sequence[str], python: str, *, elsewhere: Sequence[str] = ()
) -> Iterator[Problem]:
    """Functions that cannot be imported, tried in a process of their own, in a foreign folder.

    Args:
        wanted: import path by the manifest's field that names it.
        python_path: folders with user code.
        python: interpreter of the role that will import them.
        elsewhere: packages that this interpreter may lack although the role has them.
    """
    if not wanted:
        return
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked = {
            "parent": os.getpid(),
            "path": list(python_path),
            "imports": sorted(set(wanted.values())),
            "elsewhere": list(elsewhere),
        }
        request.write_text(json.dumps(asked))
        command = [python, "-P", import_check.__file__, str(request), str(answer)]
        ended = _end_of(command, folder)
        failed = json.loads(answer.read_text()) if answer.exists() else dict.fromkeys(wanted.values(), ended)
    where = f" (with {', '.join(python_path)} on sys.path)" if python_path else ""
    for field, entry in wanted.items():
        if entry in failed:
            yield Problem(field, f"{entry}: {failed[entry]}", f"pkg.module:name that can be imported{where}")


def longest_sequence(folder: Path) -> int | None:
    """Read ``max_position_embeddings`` of the model in ``folder``; None if its config does not say."""
    return number_of_config(folder, "max_position_embeddings")


def users_environment() -> dict[str, str]:
    """Our environment variables without our secrets, for the user's code."""
    return {name: value for name, value in os.environ.items() if name not in _OUR_SECRETS}


def _end_of(command: list[str], folder: str) -> str:
    """Run a command to its end, and say how it ended."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=users_environment(),
            capture_output=True,
            text=True,
            timeout=_IMPORT_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not imported within {_IMPORT_DEADLINE_S} s"
    return f"the import ended Python with code {done.returncode}: {done.stderr.strip()[-500:]}"
