"""The configs of all roles of one run."""

from echorl_core.config.base import RoleConfig
from echorl_core.config.inference import InferenceConfig
from echorl_core.config.orchestrator import OrchestratorConfig
from echorl_core.config.trainer import TrainerConfig


class RoleConfigs(RoleConfig):
    """The three configs that one manifest and one placement give."""

    orchestrator: OrchestratorConfig
    trainer: TrainerConfig
    inference: list[InferenceConfig]
