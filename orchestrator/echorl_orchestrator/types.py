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
    Slot,
    Span,
    Stage,
    Step,
    TaskSource,
    TextEnv,
)
from echorl_orchestrator.failures import AgentError, HarnessError, InfrastructureError
from echorl_orchestrator.filters.filter_hook import FilterEpisode

__all__ = [
    "Action",
    "AdvantageInputs",
    "AgentError",
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
    "Slot",
    "Span",
    "Stage",
    "Step",
    "TaskSource",
    "TextEnv",
    "Tool",
]
