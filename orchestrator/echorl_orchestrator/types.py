"""What authors of environments, advantages and filters import; it stays here whatever is moved behind it."""

from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs, GroupEpisode
from echorl_orchestrator.chat.messages import Message, Tool
from echorl_orchestrator.environments.contract import (
    Action,
    Environment,
    EpisodeRunner,
    Limits,
    MemberReward,
    MultiAgent,
    MultiAgentEnv,
    RunnerResult,
    SandboxedRunner,
    Slot,
    Span,
    Stage,
    Step,
    TaskSource,
    TextEnv,
)
from echorl_orchestrator.failures import AgentError, HarnessError, InfrastructureError
from echorl_orchestrator.filters.filter_hook import FilterEpisode
from echorl_orchestrator.sandboxes.contract import (
    Command,
    Ended,
    Sandbox,
    SandboxError,
    Sandboxes,
    SandboxLimits,
    SandboxLoss,
    SandboxSpec,
)

__all__ = [
    "Action",
    "AdvantageInputs",
    "AgentError",
    "Command",
    "Ended",
    "Environment",
    "EpisodeRunner",
    "FilterEpisode",
    "GroupEpisode",
    "HarnessError",
    "InfrastructureError",
    "Limits",
    "MemberReward",
    "Message",
    "MultiAgent",
    "MultiAgentEnv",
    "RunnerResult",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxLoss",
    "SandboxSpec",
    "SandboxedRunner",
    "Sandboxes",
    "Slot",
    "Span",
    "Stage",
    "Step",
    "TaskSource",
    "TextEnv",
    "Tool",
]
