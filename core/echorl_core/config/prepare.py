"""What prepare makes ready."""

from echorl_core.config.base import RoleConfig
from echorl_core.config.orchestrator import OrchestratorConfig
from echorl_core.config.trainer import TrainerConfig


class ModelSource(RoleConfig):
    """Which model a run trains, and how it gets to the run's volume."""

    name: str
    """The model's name as in the manifest: a hub id, or a path."""
    revision: str | None = None
    """Branch, tag or commit of a hub id."""
    path: str
    """Where the model's folder is, or for a hub id the link to it."""
    store: str | None = None
    """Folder for models fetched from the hub, ``<name>@<commit>`` each; None: the model is a path."""


class PrepareConfig(RoleConfig):
    """Everything that the start of an attempt needs but identity, resume policy and the hub's token."""

    run_dir: str
    model: ModelSource
    python_path: list[str] = []
    """Folders with user code."""
    orchestrator: OrchestratorConfig
    """What the role will be started with; its folders may be elsewhere in its own pod."""
    trainer: TrainerConfig
    """What the trainer will be started with, likewise."""
