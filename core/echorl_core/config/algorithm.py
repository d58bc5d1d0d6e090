"""What is learned from episodes."""

from typing import Any, Literal

from echorl_core.config.base import RoleConfig
from echorl_core.losses import LossType


class HookConfig(RoleConfig):
    """A user's function by import path, ``pkg.module:name``."""

    import_path: str
    kwargs: dict[str, Any] = {}


class EchoRoleConfig(RoleConfig):
    """ECHO on the bodies of one message role."""

    alpha: float
    tool_names: list[str] | None = None
    """Only for role ``tool``: bodies of these tools; None means all."""


class EchoConfig(RoleConfig):
    """ECHO of one environment; at least one role is set."""

    system: EchoRoleConfig | None = None
    user: EchoRoleConfig | None = None
    assistant: EchoRoleConfig | None = None
    tool: EchoRoleConfig | None = None
    warning: EchoRoleConfig | None = None
    filter: HookConfig | None = None


class FilterConfig(RoleConfig):
    """A rule that takes episodes out of training; they stay in metrics, baselines and records."""

    type: Literal["zeroAdvantage", "gibberish", "repetition", "difficulty", "custom"]
    enforce: bool = True
    stage: Literal["group", "batch"] = "batch"
    scope: Literal["rl", "all"] = "rl"
    hook: HookConfig | None = None
    """For custom, and only for it."""
    easy_from: float = 1.0
    """For difficulty: mean reward of a group from which on it is too easy."""
    hard_to: float = 0.0
    """For difficulty: mean reward up to which it is too hard."""

    @property
    def name(self) -> str:
        """What metrics and records call it: its type, or the import path of a custom one."""
        return self.type if self.hook is None else self.hook.import_path


class LengthShapingConfig(RoleConfig):
    """A bonus on a group's best rewards for episodes that cost less than the others of them."""

    by: Literal["tokens", "turns"]
    completion_weight: float = 1.0
    """What a sampled token costs; for ``tokens``."""
    environment_weight: float = 1.0
    """What a token that the environment wrote costs; for ``tokens``."""


class AdvantageConfig(RoleConfig):
    """How rewards of a group become advantages."""

    type: Literal["groupMean", "none", "maxRl", "custom", "rae"] = "groupMean"
    baseline_per: Literal["task", "member"] = "task"
    """For rae: what has a running baseline: each member of each task, or each member over all tasks."""
    momentum: float = 0.9
    """For rae: share of the old baseline that stays."""
    order: Literal["updateThenSubtract", "subtractThenUpdate"] = "updateThenSubtract"
    """For rae: whether a baseline takes in a reward before it is subtracted, or afterwards."""
    length_shaping: LengthShapingConfig | None = None
    """For groupMean: a bonus on short episodes."""
    hook: HookConfig | None = None
    """For custom, and only for it."""


class LossConfig(RoleConfig):
    """The trainer's policy-gradient loss; ECHO's cross-entropy has no settings."""

    type: LossType | Literal["opd"] = "dppo"
    """``opd``: of mode opd, towards a teacher's logprobs."""
    mask_low: float = 0.2
    """For dppo, ipo and opd: how far a token's probability may fall before the loss drops it."""
    mask_high: float = 0.2
    """For dppo and ipo: how far a token's probability may rise before the loss drops it."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_tau: float = 1.0e-3
    """For all but custom: weight of the KL penalty. ``echorl_core.losses`` says which type has which setting."""
    hook: HookConfig | None = None
    """For custom, and only for it."""


class SftConfig(RoleConfig):
    """Whose tokens are targets of mode sft."""

    train_roles: list[Literal["system", "user", "assistant", "tool"]] = ["assistant"]
    tool_names: list[str] | None = None
    """Only for role ``tool``: outputs of these tools; None means all."""


class TeacherConfig(RoleConfig):
    """Another model behind an OpenAI-compatible URL. Its key comes from the environment."""

    url: str
    """Base URL of the API."""
    model: str
    """Name that it serves the model under."""
    request_deadline_s: float = 600.0
    """Deadline of one request."""
    busy_deadline_s: float = 120.0
    """Deadline of all tries of one request, while the teacher cannot be reached or is busy."""
    start_deadline_s: float = 600.0
    """Deadline of all tries at the run's start, when the teacher may still load."""
