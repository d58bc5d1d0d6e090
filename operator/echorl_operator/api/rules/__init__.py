"""Rules between fields: simple ones are rows of ``table``, the others functions of a typed spec, by its parts."""

from collections.abc import Iterator

from echorl_operator.api.rules.algorithm import algorithm_findings
from echorl_operator.api.rules.checks import row_findings
from echorl_operator.api.rules.environments import name_findings
from echorl_operator.api.rules.finding import Finding
from echorl_operator.api.rules.inference import engine_findings
from echorl_operator.api.rules.model import model_findings
from echorl_operator.api.rules.modes import mode_findings
from echorl_operator.api.rules.multi_agent import multi_agent_findings
from echorl_operator.api.rules.table import TABLE
from echorl_operator.api.rules.trainer import rank_findings
from echorl_operator.api.run import EchoRLRunSpec

RULES = (
    name_findings,
    model_findings,
    algorithm_findings,
    mode_findings,
    rank_findings,
    engine_findings,
    multi_agent_findings,
)
"""In the order in which problems are told, after those of the rows."""


def rule_findings(spec: EchoRLRunSpec) -> Iterator[Finding]:
    """What every rule finds."""
    yield from row_findings(TABLE, spec)
    for rule in RULES:
        yield from rule(spec)
