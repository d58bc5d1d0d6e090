"""Manifests with one thing wrong each: what ``echorl validate`` and the API server must both refuse, by its field."""

from echorl_testing.manifests.refused.algorithm import ALGORITHM
from echorl_testing.manifests.refused.case import ENV, EVAL, Refused, indexed
from echorl_testing.manifests.refused.environments import ENVIRONMENTS
from echorl_testing.manifests.refused.modes import MODES, OPD, SFT, TEACHER
from echorl_testing.manifests.refused.multi_agent import MULTI_AGENT
from echorl_testing.manifests.refused.overrides import OVERRIDES
from echorl_testing.manifests.refused.roles import ROLES
from echorl_testing.manifests.refused.runtime import RUNTIME
from echorl_testing.manifests.refused.unsupported import CLUSTER_ONLY, NOT_SUPPORTED_YET, unsupported_base

MODE_RULES: list[Refused] = [*MODES, *OVERRIDES]
BROKEN_RULES: list[Refused] = [*ALGORITHM, *ENVIRONMENTS, *MULTI_AGENT, *ROLES, *RUNTIME, *MODE_RULES]

__all__ = [
    "BROKEN_RULES",
    "CLUSTER_ONLY",
    "ENV",
    "EVAL",
    "MODE_RULES",
    "NOT_SUPPORTED_YET",
    "OPD",
    "SFT",
    "TEACHER",
    "Refused",
    "indexed",
    "unsupported_base",
]
