"""Where episodes are played."""

from typing import Any, Literal

from echorl_core.config.algorithm import AdvantageConfig, EchoConfig, FilterConfig
from echorl_core.config.base import RoleConfig
from echorl_core.config.model import SamplingConfig


class CurriculumConfig(RoleConfig):
    """Which of an environment's tasks are dealt less often, by how hard they are for the policy."""

    easy_from: float
    """Mean reward of a task's last group from which on it is easy."""
    hard_to: float
    """Mean reward up to which it is hard."""
    keep_easy: float
    """Share of the easy tasks that an epoch deals, 0 to 1."""
    keep_hard: float


class OverridesConfig(RoleConfig):
    """What one train environment has of its own, in place of the run's; None: the run's."""

    group_size: int | None = None
    rl_weight: float | None = None
    advantage: AdvantageConfig | None = None
    filters: list[FilterConfig] | None = None


class SeatConfig(RoleConfig):
    """Who plays a member of a multi-agent environment."""

    policy: Literal["learner", "base", "endpoint"] = "learner"
    url: str | None = None
    """For endpoint: base URL of an OpenAI-compatible API."""
    model: str | None = None
    """For endpoint: what the model is called there."""
    key_variable: str | None = None
    """For endpoint: environment variable with its key; None: it needs none."""


class EnvironmentConfig(RoleConfig):
    """One train or eval environment."""

    name: str
    type: str
    """``builtin:<name>`` or ``import:pkg.module:factory``."""
    args: dict[str, Any] = {}
    weight: float = 1.0
    workers: int = 1
    holdout_fraction: float | None = None
    holdout_seed: int = 0
    holdout_side: Literal["train", "eval"] = "train"
    max_turns: int | None = None
    episode_timeout_s: float = 600.0
    on_timeout: Literal["drop", "score"] = "drop"
    max_retries: int = 3
    max_infrastructure_share: float = 0.1
    """Of the newest episodes; more of them lost to engines, sandboxes or workers are told."""
    max_concurrent: int = 512
    state_columns: list[str] = []
    sampling: SamplingConfig = SamplingConfig()
    echo: EchoConfig | None = None
    algorithm: OverridesConfig = OverridesConfig()
    curriculum: CurriculumConfig | None = None
    train_branches: Literal["used", "all"] = "used"
    """``used``: side calls and raced answers do not train; ``all``: every branch does."""
    members: dict[str, SeatConfig] = {}
    """Multi-agent: who plays; the policy where a member is not named."""
    drop_members: list[str] = ["judge"]
    """Multi-agent: members that never train."""
    think_tags: list[str] = ["think"]
    """Multi-agent: tags that members reason in; what stands in them reaches nobody else."""


class EvalConfig(RoleConfig):
    """An eval environment and when it is played."""

    environment: EnvironmentConfig
    interval: int
    num_examples: int
    group_size: int
    at_start: bool = True
