"""An orchestrator's config with one train and one eval environment, for tests that change parts of it."""

from pathlib import Path
from typing import Any

from echorl_core.config import (
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    EnvironmentConfig,
    EvalConfig,
    ModelConfig,
    OrchestratorConfig,
)


def orchestrator_config(root: Path, **fields: Any) -> OrchestratorConfig:
    """Environments ``digits`` and ``held-out``, ten steps, a checkpoint every second one."""
    defaults: dict[str, Any] = {
        "run_dir": str(root),
        "port": 1,
        "model": ModelConfig(path="model", dtype="float32", max_model_len=64, renderer="compact"),
        "seed": 0,
        "max_steps": 10,
        "batch": BatchConfig(group_size=2, batch_size=4, max_staleness=1, seq_len=64, num_ranks=2),
        "train": [EnvironmentConfig(name="digits", type="builtin:digits")],
        "evals": [
            EvalConfig(
                environment=EnvironmentConfig(name="held-out", type="builtin:digits"),
                interval=5,
                num_examples=1,
                group_size=1,
            )
        ],
        "engines": EngineDiscovery(names=["127.0.0.1:1"]),
        "weight_mode": "http",
        "checkpoint": CheckpointConfig(interval=2, keep_last=1),
    }
    return OrchestratorConfig(**{**defaults, **fields})
