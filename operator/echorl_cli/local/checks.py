"""Everything that can be known to be wrong before a process starts. All problems are told at once."""

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from echorl_cli.local.machine import ENV_INFERENCE_PYTHON, Machine, model_folder
from echorl_cli.local.ports import is_free
from echorl_core import start_checks
from echorl_core.attempts import OnExisting, Policy, Refused, read_run
from echorl_core.prepare import objection
from echorl_core.rundir import RunDirectory
from echorl_manifest import EchoRLRun, Problem
from echorl_manifest.compile.role_configs import num_ranks
from echorl_manifest.rules.modes import num_engines

_OF_NO_RUN = re.compile(
    r"\..*|archive|attempts|batches|broadcasts|checkpoints|control|engine-\d+|events\.jsonl|logs|manifest\.yaml|plots"
    r"|report\..*|spool|state\.json|stop"
)
"""What may lie in a folder that no run has claimed. Records of another run would go on in those of this one."""
_MOST_USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")


def all_problems(run: EchoRLRun, root: Path, machine: Machine, environ: Mapping[str, str]) -> list[Problem]:
    """Every problem of starting ``run`` in ``root`` on this machine."""
    return [
        *model_problems(run, environ),
        *directory_problems(run, root),
        *machine_problems(run, machine),
        *port_problems(run),
        *import_problems(run, machine.python),
    ]


def model_problems(run: EchoRLRun, environ: Mapping[str, str]) -> Iterator[Problem]:
    """The model's folder and what must be in it."""
    spec, path = run.spec.model, start_checks.MODEL_NAME
    folder = model_folder(spec.name, environ)
    if folder is None:
        accepted = "a folder, or a hub model that was downloaded before (`hf download`)"
        yield Problem(path, f"{spec.name}: no such folder, and not in the hub's cache", accepted)
        return
    if problems := list(start_checks.model_problems(folder, spec.max_model_len)):
        yield from problems
        return
    parallel = run.spec.trainer.parallel
    yield from start_checks.context_problems(folder, parallel.context)
    yield from start_checks.expert_problems(folder, parallel.expert)
    if run.spec.trainer.router_replay:
        yield from start_checks.replay_problems(folder)
    if spec.lora is not None:
        yield from start_checks.adapter_problems(folder, spec.lora.target_modules)


def directory_problems(run: EchoRLRun, root: Path) -> Iterator[Problem]:
    """Whether the run directory is this run's, or may become it."""
    resume, directory = run.spec.resume, RunDirectory(root)
    if root.exists() and not root.is_dir():
        yield Problem("--out", f"{root}, which is no folder", "a folder, or a name for a new one")
        return
    try:
        record = read_run(directory)
        if OnExisting(resume.on_existing) is OnExisting.ARCHIVE:
            return
        policy = Policy(resume.policy)
        foreign = objection(directory, record.uid if record else "this one", policy)
    except Refused as error:
        yield Problem("--out", str(error), "the directory of a run, or a new one")
        return
    if record is not None and record.name != run.metadata.name:
        yield Problem(
            "--out", f"{root}, the directory of run {record.name!r}", f"a directory of run {run.metadata.name!r}"
        )
    elif foreign is not None:
        never = policy is Policy.NEVER
        accepted = "policy Auto, or onExisting Archive" if never else "policy Never with onExisting Archive"
        yield Problem("spec.resume.policy" if never else "--out", foreign, f"another directory, or {accepted}")
    if record is None and root.is_dir():
        strangers = sorted(entry.name for entry in root.iterdir() if not _OF_NO_RUN.fullmatch(entry.name))
        if strangers:
            content = f"{root}, which holds {', '.join(strangers[:5])} and no run.json"
            yield Problem("--out", content, "an empty or new directory")


def machine_problems(run: EchoRLRun, machine: Machine) -> Iterator[Problem]:
    """Python environments, GPUs, folders."""
    spec = run.spec
    if num_engines(spec) and not (python := machine.engine_python(spec)).exists():
        made_by = f"scripts/setup.sh {'inference-cuda' if machine.engines_on_gpus(spec) else 'inference'}"
        accepted = f"the engines' Python environment (`{made_by}`), or its python in ${ENV_INFERENCE_PYTHON}"
        yield Problem("inference environment", f"no {python}", accepted)
    if spec.code.path is not None and not Path(spec.code.path).is_dir():
        yield Problem("spec.code.path", f"{spec.code.path}, which is no folder", "a folder with Python modules")
    if spec.code.config_map is not None:
        yield Problem("spec.code.configMap", spec.code.config_map, "path", "one machine has no ConfigMaps")
    if spec.sandboxes is not None:
        yield from sandbox_problems()
    if not machine.gpus:
        return
    ranks, each = num_ranks(spec), spec.inference.tensor_parallel or spec.inference.gpus_per_replica
    if spec.trainer.gpus_per_replica > 0 and ranks > len(machine.gpus):
        yield Problem("spec.trainer", f"{ranks} ranks", f"at most one for each of the {len(machine.gpus)} GPUs")
    if num_engines(spec) and each > len(machine.gpus):
        yield Problem(
            "spec.inference.tensorParallel", str(each), f"at most {len(machine.gpus)}, the GPUs of this machine"
        )


def sandbox_problems() -> Iterator[Problem]:
    """What this machine lacks for sandboxes of its own; whether they start is tried by the environments' workers."""
    place = "spec.sandboxes.provider"
    if shutil.which("bwrap") is None:
        yield Problem(place, "process, and no bwrap", "a machine with bubblewrap (package bubblewrap)")
    if _MOST_USER_NAMESPACES.is_file() and int(_MOST_USER_NAMESPACES.read_text()) == 0:
        yield Problem(place, f"process, and 0 in {_MOST_USER_NAMESPACES}", "a machine with user namespaces")


def port_problems(run: EchoRLRun) -> Iterator[Problem]:
    """Ports that the manifest names; all others are chosen among the free ones."""
    arguments = run.spec.inference.extra_args
    for index, argument in enumerate(arguments):
        name, given, value = argument.partition("=")
        if not given:
            value = arguments[index + 1] if index + 1 < len(arguments) else ""
        if name.startswith("--") and name.endswith("port") and value.isdigit() and not is_free(int(value)):
            yield Problem(f"spec.inference.extraArgs[{index}]", f"port {value}, which is taken", "a free port")


def import_problems(run: EchoRLRun, python: str) -> Iterator[Problem]:
    """Import paths that do not resolve, tried in a process of their own."""
    path = [str(Path(run.spec.code.path).absolute())] if run.spec.code.path else []
    yield from start_checks.import_problems(dict(import_paths(run)), path, python)


def import_paths(run: EchoRLRun) -> Iterator[tuple[str, str]]:
    """Field path and import path of every function that the manifest names."""
    for name in ("loss", "advantage"):
        import_path = getattr(run.spec.algorithm, name).import_path
        if import_path is not None:
            yield f"spec.algorithm.{name}.import", import_path
    for index, rule in enumerate(run.spec.algorithm.filters):
        if rule.import_path is not None:
            yield f"spec.algorithm.filters[{index}].import", rule.import_path
    environments = run.spec.environments
    for kind, entries in (("train", environments.train), ("eval", environments.eval)):
        for index, environment in enumerate(entries):
            path = f"spec.environments.{kind}[{index}]"
            source, _, name = environment.type.partition(":")
            if source == "import":
                yield f"{path}.type", name
            echo = getattr(environment, "echo", None)
            if echo is not None and echo.filter is not None:
                yield f"{path}.echo.filter.import", echo.filter.import_path
