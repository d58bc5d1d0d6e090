"""What a manifest cannot know: folders, addresses, the device of one start. Supervisor or operator fill it in."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from echorl_manifest.models.run import EchoRLRun
from echorl_manifest.rules.modes import num_engines

EXAMPLE_ORCHESTRATOR_PORT = 8100
EXAMPLE_TRAINER_PORT = 8200
EXAMPLE_ENGINE_PORT = 8300


@dataclass(frozen=True)
class EnginePlacement:
    """Where one engine listens."""

    host: str
    port: int


@dataclass(frozen=True)
class Placement:
    """Where the roles of one run are."""

    run_dir: str
    model_path: str
    """Folder that ``model.name`` was resolved to."""
    renderer: str
    """Codec that ``model.renderer`` was resolved to; never ``auto`` in a real start."""
    device: Literal["cpu", "cuda"]
    orchestrator_host: str
    """Address that the orchestrator binds."""
    orchestrator_port: int
    orchestrator_url: str
    """How the trainer reaches it."""
    engines: tuple[EnginePlacement, ...]
    """One InferenceConfig each."""
    publish_host: str = "127.0.0.1"
    """Address that trainer rank 0 serves weights on."""
    advertise_host: str | None = None
    """Name of that address for engines; None: the same."""
    metrics_port: int = 0
    """Rank r of the trainer serves on this + r; 0: any free port."""
    python_path: tuple[str, ...] = ()
    """Folders with the user's code."""
    model_max_len: int | None = None
    """Longest sequence of the model itself; None: unknown."""
    engine_names: tuple[str, ...] = ()
    """``host:port`` names to find engines by; empty: the addresses of ``engines``."""
    broker_url: str | None = None
    """Where the run asks for sandboxes in pods; None: there are none."""
    environment_urls: Mapping[str, str] = field(default_factory=dict)
    """Where environments that are images are served, by their names."""


def example_placement(run: EchoRLRun) -> Placement:
    """Where ``echorl render`` imagines the roles: one machine, fixed ports, nothing looked up."""
    spec = run.spec
    on_cpu = spec.inference.gpus_per_replica == 0
    return Placement(
        run_dir=f"runs/{run.metadata.name}",
        model_path=spec.model.name,
        renderer=spec.model.renderer,
        device="cpu" if on_cpu else "cuda",
        orchestrator_host="127.0.0.1",
        orchestrator_port=EXAMPLE_ORCHESTRATOR_PORT,
        orchestrator_url=f"http://127.0.0.1:{EXAMPLE_ORCHESTRATOR_PORT}",
        engines=tuple(EnginePlacement("127.0.0.1", EXAMPLE_ENGINE_PORT + index) for index in range(num_engines(spec))),
        metrics_port=EXAMPLE_TRAINER_PORT,
        python_path=(spec.code.path,) if spec.code.path else (),
    )
