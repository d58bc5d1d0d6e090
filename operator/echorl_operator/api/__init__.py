"""The EchoRLRun manifest: models, rules, and what is not supported yet."""

from echorl_operator.api.base import API_GROUP, API_VERSION, KIND, duration_seconds
from echorl_operator.api.problems import NOT_SUPPORTED, Problem
from echorl_operator.api.run import EchoRLRun, EchoRLRunSpec
from echorl_operator.api.unsupported import refused_locally, unused_locally
from echorl_operator.api.validation import InvalidRun, load, problems

__all__ = [
    "API_GROUP",
    "API_VERSION",
    "KIND",
    "NOT_SUPPORTED",
    "EchoRLRun",
    "EchoRLRunSpec",
    "InvalidRun",
    "Problem",
    "duration_seconds",
    "load",
    "problems",
    "refused_locally",
    "unused_locally",
]
