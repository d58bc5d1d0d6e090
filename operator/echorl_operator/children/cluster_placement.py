"""Where the roles of a run are in a cluster: DNS names of Services, ports, folders inside the pods.

The run's volume, the same for every role (each mounts the parts that storage.py gives it):

    runs/<run>/            the run's directory
    runs/<run>/.model      link that prepare makes to the model it fetched, relative, inside the volume
    models/<name>@<commit> models fetched from a hub
    <model.name>           a model that is a path
    <code.path>            the user's code
"""

import posixpath

from echorl_core.problem import Problem
from echorl_manifest.compile.placement import EnginePlacement, Placement
from echorl_manifest.models.environments import Environment
from echorl_manifest.models.model import is_path
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.schema import found_text
from echorl_operator import names
from echorl_operator.settings import Settings

ORCHESTRATOR_PORT = 8100
TRAINER_PORT = 8200
"""Port of a pod's first rank; the others' ports follow it."""
ENGINE_PORT = 8000
ENVIRONMENT_PORT = 8000
"""Where OpenEnv's images serve."""
SANDBOX_PORT = 7070
"""Port of the daemon in each sandbox."""
RENDEZVOUS_PORT = 29500
GANG_PORT = 29501
"""Where a gang of several pods agrees on restarts in place."""

VOLUME = "/volume"
"""Where the run's volume is, or the parts of it that a role gets."""
MODELS = "/models"
"""Where orchestrator, trainer and engines find the model, by its name."""
FETCHED_MODELS = "models"
"""Where models of a hub are kept, relative to the volume; runs that share it share them."""
CODE = "/code"
"""Where orchestrator and trainer find the user's code."""


def run_folder(run: str) -> str:
    """The run's directory, relative to its volume."""
    return f"runs/{run}"


def run_directory(run: str) -> str:
    """The run's directory, in every pod that has it."""
    return f"{VOLUME}/{run_folder(run)}"


def on_volume(path: str) -> str:
    """A path of the manifest, relative to the volume: a leading ``/`` is the volume's own root."""
    return posixpath.normpath("/" + path).lstrip("/")


def model_folder(run: EchoRLRun) -> str:
    """The model's folder, or a link to it, relative to the volume."""
    name = run.spec.model.name
    return on_volume(name) if is_path(name) else f"{run_folder(run.metadata.name)}/.model"


def model_path(run: EchoRLRun) -> str:
    """Where pods find the model. The last part is the model's own name: families are known by it."""
    return f"{MODELS}/{on_volume(run.spec.model.name)}"


def cluster_placement(run: EchoRLRun, settings: Settings, namespace: str) -> Placement:
    """Addresses and folders of a run. They are the same for every attempt and for any number of engines."""
    name = run.metadata.name
    has_code = run.spec.code.path is not None or run.spec.code.config_map is not None
    return Placement(
        run_dir=run_directory(name),
        model_path=model_path(run),
        renderer=run.spec.model.renderer,
        device="cpu" if run.spec.inference.gpus_per_replica == 0 else "cuda",
        orchestrator_host=settings.bind_address,
        orchestrator_port=ORCHESTRATOR_PORT,
        orchestrator_url=f"http://{names.orchestrator(name)}:{ORCHESTRATOR_PORT}",
        engines=(EnginePlacement(settings.bind_address, ENGINE_PORT),),
        publish_host=settings.bind_address,
        advertise_host=first_trainer(name),
        metrics_port=TRAINER_PORT,
        python_path=(CODE,) if has_code else (),
        engine_names=(f"{names.inference(name)}:{ENGINE_PORT}",),
        environment_urls={
            environment.name: f"http://{names.environment(name, environment.name)}:{ENVIRONMENT_PORT}"
            for environment in served(run.spec)
        },
        broker_url=None if settings.broker_url is None else f"{settings.broker_url}/runs/{namespace}/{name}",
    )


def served(spec: EchoRLRunSpec) -> list[Environment]:
    """Environments that are images."""
    both: tuple[Environment, ...] = (*spec.environments.train, *spec.environments.eval)
    return [environment for environment in both if environment.image is not None]


def orchestrator_address(ip: str) -> str:
    """``host:port`` of an orchestrator's pod; an IPv6 address stands in brackets."""
    return f"[{ip}]:{ORCHESTRATOR_PORT}" if ":" in ip else f"{ip}:{ORCHESTRATOR_PORT}"


def trainer_pod(run: str, index: str) -> str:
    """DNS name of one of the gang's pods, within the namespace."""
    return f"{names.trainer(run)}-{index}.{names.trainer(run)}"


def first_trainer(run: str) -> str:
    """DNS name of the gang's first pod, within the namespace."""
    return trainer_pod(run, "0")


def trainer_member(run: str, index: int) -> str:
    """``host:port`` of process 1 of one of the gang's pods, within the namespace."""
    return f"{names.trainer(run)}-{index}.{names.trainer(run)}:{GANG_PORT}"


def path_problems(run: EchoRLRun) -> list[Problem]:
    """Paths that mean something on one machine, but nothing on a volume."""
    paths = {"spec.model.name": run.spec.model.name if is_path(run.spec.model.name) else None}
    paths["spec.code.path"] = run.spec.code.path
    return [
        Problem(field, found_text(path), "a path inside the run's volume", "it does not lead to the run's volume")
        for field, path in paths.items()
        if path is not None and _leaves_volume(path)
    ]


def _leaves_volume(path: str) -> bool:
    return path.startswith("~") or ".." in path.split("/") or on_volume(path) == ""
