"""Manifests with one thing wrong each: what ``echorl validate`` and the API server must both refuse, by its field."""

from echorl_testing.refused_manifests.algorithm import ALGORITHM
from echorl_testing.refused_manifests.case import ENV, EVAL, Refused, indexed
from echorl_testing.refused_manifests.environments import ENVIRONMENTS
from echorl_testing.refused_manifests.modes import MODES, OPD, SFT, TEACHER
from echorl_testing.refused_manifests.multi_agent import MULTI_AGENT
from echorl_testing.refused_manifests.overrides import OVERRIDES
from echorl_testing.refused_manifests.roles import ROLES
from echorl_testing.refused_manifests.runtime import RUNTIME
from echorl_testing.refused_manifests.unsupported import CLUSTER_ONLY, NOT_SUPPORTED_YET, unsupported_base

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
