"""What an orchestrator that finished, or stopped on request, said last."""

from echorl_core import termination_message
from echorl_core.names import ExitCode
from echorl_core.termination_message import TerminationMessage
from echorl_operator.names import PodRole
from echorl_operator.observed.records import ContainerPhase
from echorl_operator.observed.world import Observed

_TOLD = frozenset({ExitCode.OK, ExitCode.STOPPED})


def final_words(observed: Observed, attempt: int) -> TerminationMessage | None:
    """Those of this attempt's orchestrator; None while it runs, and if it ended otherwise."""
    for pod in observed.of(PodRole.ORCHESTRATOR):
        for container in pod.containers:
            if (container.name, container.phase) != (PodRole.ORCHESTRATOR, ContainerPhase.TERMINATED):
                continue
            words = termination_message.read(container.message)
            if words is not None and words.attempt == attempt and words.exit_code in _TOLD:
                return words
    return None
