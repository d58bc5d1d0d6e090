"""What the prepare pod of a cluster checks before it changes anything: the volume, the model, the user's code."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from echorl_core import checkpoints, start_checks
from echorl_core.config import EnvironmentConfig, OrchestratorConfig, PrepareConfig, TrainerConfig
from echorl_core.names import ExitCode
from echorl_core.problem import Problem
from echorl_core.rundir import RunDirectory, sync_folder, write_file

_STORAGE = "spec.storage"
_PROBE = ".echorl-probe"
_RENDERER_DEADLINE_S = 120
_TRAINER_PACKAGES = ("echorl_trainer", "torch", "transformers")
"""Packages that the trainer's image has and prepare's lacks."""
_CODEC = "echorl_orchestrator.codec"


def volume_problems(root: Path) -> Iterator[Problem]:
    """Whether the run directory can be written, renamed in and synced; it is made if it is not there."""
    probe = root / _PROBE
    content = os.urandom(16)
    try:
        write_file(probe, content)
        read_back = probe.read_bytes()
        probe.unlink()
        sync_folder(root)
    except OSError as error:
        accepted = f"a volume that user {os.getuid()} may write, with rename and fsync"
        yield Problem(_STORAGE, f"{root}: {error.strerror or error}", accepted)
        return
    if read_back != content:
        yield Problem(_STORAGE, f"{root}, which gives back other bytes than were written", "a volume that keeps files")


def code_problems(config: PrepareConfig, python: str = sys.executable) -> Iterator[Problem]:
    """Yield what is wrong with the user's folders, and with every function that the manifest names."""
    missing = [folder for folder in config.python_path if not Path(folder).is_dir()]
    for folder in missing:
        yield Problem("spec.code.path", f"{folder}, which is no folder", "a folder with Python modules")
    if not missing:
        path, of_trainer = config.python_path, trainer_imports(config.trainer)
        yield from start_checks.import_problems(imports(config.orchestrator), path, python)
        yield from start_checks.import_problems(of_trainer, path, python, elsewhere=_TRAINER_PACKAGES)


def imports(config: OrchestratorConfig) -> dict[str, str]:
    """Import path by the manifest's field, of every function that the orchestrator's workers will import."""
    entries: list[tuple[str, EnvironmentConfig]] = [
        *((f"spec.environments.train[{index}]", environment) for index, environment in enumerate(config.train)),
        *((f"spec.environments.eval[{index}]", eval_set.environment) for index, eval_set in enumerate(config.evals)),
    ]
    advantage = config.batch.advantage.hook
    import_paths = {} if advantage is None else {"spec.algorithm.advantage.import": advantage.import_path}
    for index, rule in enumerate(config.batch.filters):
        if rule.hook is not None:
            import_paths[f"spec.algorithm.filters[{index}].import"] = rule.hook.import_path
    for path, environment in entries:
        source, _, name = environment.type.partition(":")
        if source == "import":
            import_paths[f"{path}.type"] = name
        if environment.echo is not None and environment.echo.filter is not None:
            import_paths[f"{path}.echo.filter.import"] = environment.echo.filter.import_path
    return import_paths


def trainer_imports(config: TrainerConfig) -> dict[str, str]:
    """Import path by the manifest's field, of every function that the trainer's ranks will import."""
    return {} if config.loss.hook is None else {"spec.algorithm.loss.import": config.loss.hook.import_path}


def model_problems(folder: Path, config: PrepareConfig) -> list[Problem]:
    """List what the model's folder lacks; if it lacks nothing, why its messages cannot be rendered."""
    if not folder.is_dir():
        accepted = "a folder of the run's volume, or a hub id"
        return [Problem(start_checks.MODEL_NAME, f"{config.model.name}: no such folder", accepted)]
    model = config.orchestrator.model
    problems = list(start_checks.model_problems(folder, model.max_model_len))
    if not problems:
        problems = list(start_checks.context_problems(folder, config.trainer.context))
        problems += start_checks.expert_problems(folder, config.trainer.expert)
        if config.trainer.router_replay:
            problems += start_checks.replay_problems(folder)
        if model.lora is not None:
            problems += start_checks.adapter_problems(folder, model.lora.target_modules)
    return problems or list(_renderer_problems(folder, config))


def _renderer_problems(folder: Path, config: PrepareConfig) -> Iterator[Problem]:
    """Asked of the orchestrator's own code, in a process of its own; not asked where it is not installed."""
    renderer = config.orchestrator.model.renderer
    if importlib.util.find_spec(_CODEC.partition(".")[0]) is None:
        return
    with tempfile.TemporaryDirectory() as temporary:
        # Families are known by the model's name, which the folder has in the orchestrator's pod.
        named = Path(temporary) / config.model.name.strip("/.~ ").replace("..", "")
        named.parent.mkdir(parents=True, exist_ok=True)
        named.symlink_to(folder.absolute())
        command = [sys.executable, "-P", "-m", _CODEC, str(named), renderer]
        done = subprocess.run(
            command, cwd=temporary, capture_output=True, text=True, timeout=_RENDERER_DEADLINE_S, check=False
        )
    if done.returncode == ExitCode.BAD_INPUT:
        reason = done.stderr.strip().replace(str(named), config.model.name)
        yield Problem("spec.model.renderer", renderer, "one that fits the model", reason)
    elif done.returncode:
        raise RuntimeError(f"the renderer could not be checked: {done.stderr.strip()[-500:]}")


def room_problems(run: RunDirectory, model: Path, free_bytes: int, *, copies: int) -> Iterator[Problem]:
    """Whether the volume has room for one more checkpoint.

    Args:
        run: the run directory.
        model: the model's folder.
        free_bytes: bytes that are free on the volume.
        copies: published versions that lie on the volume besides.
    """
    weights = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    committed, _ = checkpoints.committed(run)
    # The least that any optimizer leaves: float32 master weights, and the weights in the model's own precision.
    checkpoint = committed[-1].manifest.size_bytes if committed else 2 * weights
    needed = checkpoint + copies * weights
    if free_bytes < needed:
        accepted = f"at least {_gigabytes(needed)} free, for the next checkpoint"
        yield Problem(_STORAGE, f"{run.root} with {_gigabytes(free_bytes)} free", accepted)


def free_bytes(root: Path) -> int | None:
    """Bytes that are free on the volume of ``root``; None if its file system does not say."""
    usage = shutil.disk_usage(root)
    return usage.free if usage.total else None


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"
