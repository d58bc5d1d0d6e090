"""What a run in real pods needs around it: a namespace's volume with a model, this machine's programs, the operator."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echorl_core.rundir import RunDirectory
from echorl_testing.cluster import machine_image
from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.volumes import folder_volume, read_only_claim
from echorl_testing.local.local_run import manifest, write_model
from echorl_testing.operator.operator_process import operator_process
from echorl_testing.operator.real_run import RealRun
from echorl_testing.operator.site import own

REPOSITORY = Path(__file__).parents[4]
ENVIRONMENTS = {"orchestrator": ".venv", "trainer": ".venv", "inference": ".venv-inference"}
"""Folder of the environment with a role's programs."""
PACKAGES = ("core", "operator", "orchestrator", "trainer")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_IMAGES = ("trainer", "inference", "inferenceCpu", "orchestrator")


@dataclass
class Stage:
    """What is there before the run is applied."""

    run: RealRun
    document: dict[str, Any]
    volume: Path

    @property
    def directory(self) -> RunDirectory:
        """The run's, on its volume."""
        return RunDirectory(self.volume / "runs" / self.run.name)


def with_machine_programs(document: dict[str, Any], code: Path | None = None) -> None:
    """Have the pods of a manifest run this machine's programs. ``code``: those of another version of the repository."""
    for role, environment in ENVIRONMENTS.items():
        template = machine_image.template(role, REPOSITORY, environment)
        if code is not None:
            (container,) = template["spec"]["containers"]
            path = ":".join(str(code / package) for package in PACKAGES)
            container["env"].append({"name": "PYTHONPATH", "value": path})
            container["volumeMounts"].append({"name": "earlier", "mountPath": str(code), "readOnly": True})
            claim = {"claimName": "code", "readOnly": True}
            template["spec"]["volumes"].append({"name": "earlier", "persistentVolumeClaim": claim})
        document["spec"].setdefault(role, {})["template"] = template


@contextmanager
def machine_programs(cluster: Cluster, namespace: str, code: Path | None = None) -> Iterator[None]:
    """The claims that ``with_machine_programs`` names."""
    with ExitStack() as stack:
        stack.enter_context(machine_image.claims(cluster.api, namespace, REPOSITORY))
        if code is not None:
            stack.enter_context(folder_volume(cluster.api, namespace, "code", code))
            read_only_claim(cluster.api, namespace, "code")
        yield


@contextmanager
def run_volume(cluster: Cluster, namespace: str, name: str, folder: Path) -> Iterator[Path]:
    """The volume of run ``name`` with the model ``/models/tiny``, removed afterwards."""
    volume = folder / "volume"
    write_model(volume / "models" / "tiny")
    own(volume)
    with folder_volume(cluster.api, namespace, f"{name}-volume", volume):
        yield volume
    shutil.rmtree(volume)


@contextmanager
def staged(
    cluster: Cluster,
    namespace: str,
    folder: Path,
    name: str,
    *,
    built: bool = False,
    code: Path | None = None,
    **spec: Any,
) -> Iterator[Stage]:
    """A small run that is ready to be applied in a namespace, with an operator at work there.

    Args:
        cluster: whose node runs, with the images.
        folder: for the volume and the operator's files.
        name: of the run.
        built: pods are of built images, by their default names, and not of this machine's programs.
        code: folder of another version of this repository, whose operator and pods these are.
        spec: blocks that replace those of ``local_run.manifest``.
    """
    document = manifest(Path("/models/tiny"), storage={"size": "1Gi"}, **spec)
    document["metadata"]["name"] = name
    images: Mapping[str, str] = {} if built else dict.fromkeys(_IMAGES, machine_image.MACHINE)
    with ExitStack() as stack:
        volume = stack.enter_context(run_volume(cluster, namespace, name, folder))
        if not built:
            stack.enter_context(machine_programs(cluster, namespace, code))
            with_machine_programs(document, code)
        # Alone, since on a busy machine it might lose its lease, and no kubelet would start it again.
        operator = stack.enter_context(
            operator_process(
                cluster.connection.kubeconfig, namespace, folder, {"images": dict(images)}, "--no-election", code=code
            )
        )

        def still_works() -> str | None:
            ended = operator.poll()
            log = (folder / "operator.log").read_text()[-4000:]
            return None if ended is None else f"the operator ended with {ended}: {log}"

        yield Stage(RealRun(cluster, namespace, name, still_works), document, volume)
