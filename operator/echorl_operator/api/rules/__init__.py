"""Rules between fields, by the part of the spec. Each is a pure function of a typed spec; all are looked at."""

from collections.abc import Iterator

from echorl_operator.api.rules.algorithm import algorithm_findings, batch_findings
from echorl_operator.api.rules.environments import (
    curriculum_findings,
    echo_findings,
    name_findings,
    sampling_findings,
)
from echorl_operator.api.rules.finding import Finding
from echorl_operator.api.rules.inference import engine_findings
from echorl_operator.api.rules.model import model_findings
from echorl_operator.api.rules.modes import mode_findings
from echorl_operator.api.rules.monitors import monitor_findings
from echorl_operator.api.rules.multi_agent import multi_agent_findings
from echorl_operator.api.rules.runtime import runtime_findings
from echorl_operator.api.rules.trainer import rank_findings
from echorl_operator.api.run import EchoRLRunSpec

RULES = (
    name_findings,
    model_findings,
    algorithm_findings,
    mode_findings,
    batch_findings,
    echo_findings,
    curriculum_findings,
    sampling_findings,
    rank_findings,
    engine_findings,
    monitor_findings,
    runtime_findings,
    multi_agent_findings,
)
"""In the order in which problems are told."""


def rule_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What every rule finds."""
    for rule in RULES:
        yield from rule(spec)
