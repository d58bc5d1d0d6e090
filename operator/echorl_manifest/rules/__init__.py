"""Rules between fields: simple ones are rows of ``table``, the others functions of a typed spec, by its parts."""

from collections.abc import Iterator

from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.rules.algorithm import algorithm_findings
from echorl_manifest.rules.checks import row_findings
from echorl_manifest.rules.environments import name_findings
from echorl_manifest.rules.finding import Finding
from echorl_manifest.rules.inference import engine_findings
from echorl_manifest.rules.model import model_findings
from echorl_manifest.rules.modes import mode_findings
from echorl_manifest.rules.multi_agent import multi_agent_findings
from echorl_manifest.rules.table import TABLE
from echorl_manifest.rules.trainer import elastic_findings, rank_findings

RULES = (
    name_findings,
    model_findings,
    algorithm_findings,
    mode_findings,
    rank_findings,
    elastic_findings,
    engine_findings,
    multi_agent_findings,
)
"""In the order in which problems are told, after those of the rows."""


def rule_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What every rule finds."""
    yield from row_findings(TABLE, spec)
    for rule in RULES:
        yield from rule(spec)
