"""The EchoRLRun manifest: models, rules, and what is not supported yet."""

from echorl_core.problem import Problem
from echorl_manifest.models.base import API_GROUP, API_VERSION, KIND, duration_seconds
from echorl_manifest.models.run import EchoRLRun, EchoRLRunSpec
from echorl_manifest.problems import NOT_SUPPORTED
from echorl_manifest.rules.unsupported import refused_locally, unused_locally
from echorl_manifest.validation import InvalidRun, load, problems

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
