"""What is wrong with engines, by the orchestrator's word: why one that runs does not serve. Pure."""

import re

from echorl_operator.names import PodRole
from echorl_operator.observed.roles import EngineState, RoleState
from echorl_operator.observed.world import Observed

MOST_CHARACTERS = 400
"""The most characters that are told of one engine's error."""
_ORDER = ("quarantined", "updating", "syncing", "serving", "lost", "starting", "discovered")
"""Which of several states says most: an engine that is shut out, one whose update fails, one that is gone."""
_NOT_UP_YET = frozenset({"starting", "discovered"})
"""States of an engine that loads: that it does not answer then is no error."""
_CREDENTIALS = (
    (re.compile(r"://[^/\s@]+@"), "://"),
    (re.compile(r"(?i)\b(bearer\s+|(?:token|secret|password|api[-_]?key)=)[^\s&;,]+"), r"\1..."),
)


def engine_errors(observed: Observed, state: RoleState) -> str:
    """One clause about the engine whose error says most, and how many others have one; empty if none has.

    Args:
        observed: The run's world; its pods give engines names that people know.
        state: What the orchestrator of the attempt said last.
    """
    pods = {pod.ip: pod for pod in observed.of(PodRole.INFERENCE) if pod.ip}

    def is_told(engine: EngineState) -> bool:
        pod = pods.get(_host(engine.name))
        return bool(engine.error) and (engine.state not in _NOT_UP_YET or (pod is not None and pod.ready))

    wrong = sorted(filter(is_told, state.engines), key=lambda engine: (_rank(engine.state), engine.name))
    if not wrong:
        return ""
    first = wrong[0]
    pod = pods.get(_host(first.name))
    who = first.name if pod is None else f"{pod.meta.name} ({first.name})"
    more = f" (and {len(wrong) - 1} more have errors)" if len(wrong) > 1 else ""
    return f"engine {who} is {first.state}: {_fit(first.error)}{more}"


def _host(name: str) -> str:
    """The host in ``host:port``, where an IPv6 address stands in brackets."""
    return name.rpartition(":")[0].strip("[]")


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def _fit(error: str) -> str:
    """One line of bounded length, without what an address or a header may hold to log in with."""
    text = " ".join(error.split())
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
