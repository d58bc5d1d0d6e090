"""What this machine has: Python environments, GPUs, models; and where a run's roles go on it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from echorl_cli.local.launch import Devices
from echorl_cli.local.ports import free_ports, free_run
from echorl_core.start_checks import longest_sequence
from echorl_manifest import EchoRLRun
from echorl_manifest.compile.placement import EnginePlacement, Placement
from echorl_manifest.compile.role_configs import num_ranks
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.modes import num_engines

ENV_INFERENCE_PYTHON = "ECHORL_INFERENCE_PYTHON"
_TOOL_DEADLINE_S = 20
_INFERENCE_ENVIRONMENT = Path(".venv-inference/bin/python")
_CUDA_ENVIRONMENT = Path(".venv-inference-cuda/bin/python")


@dataclass(frozen=True)
class Machine:
    """What this machine has for a run: Python environments and GPUs."""

    python: str
    """Python of orchestrator and trainer."""
    inference_python: Path
    """Python of the engines, unless those on GPUs have one of their own; may not exist."""
    gpus: tuple[str, ...]
    """The GPUs, as CUDA_VISIBLE_DEVICES names them."""
    cuda_inference_python: Path | None = None
    """Python of engines on GPUs; None if they have no environment of their own."""

    @classmethod
    def look(cls, environ: Mapping[str, str], device_folder: Path = Path("/dev")) -> "Machine":
        """Find them. No GPU library is loaded."""
        gpus = _gpus(environ, device_folder)
        if named := environ.get(ENV_INFERENCE_PYTHON):
            return cls(sys.executable, Path(named), gpus)
        # The working folder, the environment's that we run in, and the repository that we are installed from.
        homes = [Path.cwd(), Path(sys.prefix).parent, Path(__file__).parents[3]]
        both = (_first(homes, _INFERENCE_ENVIRONMENT), _first(homes, _CUDA_ENVIRONMENT))
        return cls(sys.executable, both[0] or homes[0] / _INFERENCE_ENVIRONMENT, gpus, both[1])

    def engines_on_gpus(self, spec: EchoRLRunSpec) -> bool:
        """Whether a run's engines compute on GPUs here."""
        return bool(self.gpus) and spec.inference.gpus_per_replica > 0

    def engine_python(self, spec: EchoRLRunSpec) -> Path:
        """Python of a run's engines; may not exist."""
        on_gpus = self.cuda_inference_python if self.engines_on_gpus(spec) else None
        return on_gpus or self.inference_python


def _first(homes: Sequence[Path], environment: Path) -> Path | None:
    return next((home / environment for home in homes if (home / environment).exists()), None)


def _gpus(environ: Mapping[str, str], device_folder: Path) -> tuple[str, ...]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() not in {"", "-1"})
    matches = (re.fullmatch(r"nvidia(\d+)", path.name) for path in device_folder.glob("nvidia*"))
    return tuple(str(index) for index in sorted(int(match[1]) for match in matches if match))


def gpu_users(environ: Mapping[str, str]) -> list[str]:
    """Process id and memory of every process that holds GPU memory; empty where ``nvidia-smi`` cannot say."""
    tool = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if tool is None:
        return []
    command = [tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_DEADLINE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def model_folder(name: str, environ: Mapping[str, str]) -> Path | None:
    """The folder that ``spec.model.name`` means: a path, or a hub model that was downloaded before; None if neither."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.absolute()
    cache = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    cache = Path(environ.get("HF_HUB_CACHE") or cache)
    repository = cache / f"models--{name.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def place(run: EchoRLRun, root: Path, model: Path, machine: Machine) -> Placement:
    """Where the roles of a run listen on this machine. The ports are free now.

    Raises:
        OSError: there are not enough free ports.
    """
    spec = run.spec
    count = num_engines(spec)
    metrics = free_run(num_ranks(spec))
    taken = range(metrics, metrics + num_ranks(spec))
    port, *listening = free_ports(1 + count, taken=taken)
    return Placement(
        run_dir=str(root.absolute()),
        model_path=str(model),
        renderer=spec.model.renderer,
        device="cuda" if machine.engines_on_gpus(spec) else "cpu",
        orchestrator_host="127.0.0.1",
        orchestrator_port=port,
        orchestrator_url=f"http://127.0.0.1:{port}",
        engines=tuple(EnginePlacement("127.0.0.1", engine) for engine in listening),
        metrics_port=metrics,
        python_path=(str(Path(spec.code.path).absolute()),) if spec.code.path else (),
        model_max_len=longest_sequence(model),
    )


def divide_gpus(run: EchoRLRun, gpus: tuple[str, ...]) -> Devices:
    """Engines first, then trainer ranks; where there are too few GPUs for both, they share."""
    spec = run.spec
    count, each = num_engines(spec), spec.inference.gpus_per_replica
    ranks = num_ranks(spec) if spec.trainer.gpus_per_replica > 0 else 0

    def some(first: int, count: int) -> str:
        return ",".join(gpus[(first + offset) % len(gpus)] for offset in range(min(count, len(gpus)))) if gpus else ""

    return Devices(
        engines=tuple(some(index * each, each) for index in range(count)),
        trainer=some(count * each, ranks),
    )


def environment_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What the roles inherit: everything but torchrun's and our own variables of an outer process."""
    foreign = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ECHORL_ADMIN_TOKEN", "ECHORL_PROCESS"}
    return {name: value for name, value in environ.items() if name not in foreign}
