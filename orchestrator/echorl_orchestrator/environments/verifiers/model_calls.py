"""What a call of the model that failed says of an episode."""

from echorl_orchestrator.failures import AgentError, ClassedError, HarnessError

TURN_LIMIT = "turn_limit_exceeded"
"""Code of the gateway's refusal of a turn beyond ``maxTurns``."""
_SERVER_ERROR = 500


def failed_call(told: str, status: int) -> ClassedError:
    """The failure of an episode by the HTTP status of the call that ended it.

    An engine's failure is known where the engines are: of an agent's failure it is asked for there.
    """
    return AgentError(told) if status >= _SERVER_ERROR else HarnessError(told)
