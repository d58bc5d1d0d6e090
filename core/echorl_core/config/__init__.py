"""Typed config of each role. The operator compiles a manifest into them; roles read one JSON file and nothing else.

Identity (run, attempt) and secrets come from the environment, so these files are the same for every attempt.
"""

from echorl_core.config.algorithm import (
    AdvantageConfig,
    EchoConfig,
    EchoRoleConfig,
    FilterConfig,
    HookConfig,
    LengthShapingConfig,
    LossConfig,
    SftConfig,
    TeacherConfig,
)
from echorl_core.config.base import RoleConfig
from echorl_core.config.environment import CurriculumConfig, EnvironmentConfig, EvalConfig, OverridesConfig, SeatConfig
from echorl_core.config.inference import InferenceConfig, Quantization, SpeculativeConfig
from echorl_core.config.model import LoraConfig, ModelConfig, SamplingConfig
from echorl_core.config.orchestrator import (
    BatchConfig,
    EngineDiscovery,
    MonitorsConfig,
    OrchestratorConfig,
    WandbConfig,
)
from echorl_core.config.prepare import ModelSource, PrepareConfig
from echorl_core.config.roles import RoleConfigs
from echorl_core.config.sandboxes import SandboxesConfig
from echorl_core.config.trainer import CheckpointConfig, MemoryConfig, OptimizerConfig, TrainerConfig

__all__ = [
    "AdvantageConfig",
    "BatchConfig",
    "CheckpointConfig",
    "CurriculumConfig",
    "EchoConfig",
    "EchoRoleConfig",
    "EngineDiscovery",
    "EnvironmentConfig",
    "EvalConfig",
    "FilterConfig",
    "HookConfig",
    "InferenceConfig",
    "LengthShapingConfig",
    "LoraConfig",
    "LossConfig",
    "MemoryConfig",
    "ModelConfig",
    "ModelSource",
    "MonitorsConfig",
    "OptimizerConfig",
    "OrchestratorConfig",
    "OverridesConfig",
    "PrepareConfig",
    "Quantization",
    "RoleConfig",
    "RoleConfigs",
    "SamplingConfig",
    "SandboxesConfig",
    "SeatConfig",
    "SftConfig",
    "SpeculativeConfig",
    "TeacherConfig",
    "TrainerConfig",
    "WandbConfig",
]
