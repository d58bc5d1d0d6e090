"""Does an engine compute what the trainer computes? A fixed sequence, compared after each update."""

import math

from echorl_core.wire.weights import Probe
from echorl_orchestrator.engines.admin import AdminClient
from echorl_orchestrator.engines.answers import parse_prompt_logprobs
from echorl_orchestrator.engines.bodies import prompt_logprobs_body
from echorl_orchestrator.failures import EpisodeError


class ProbeMismatch(Exception):
    """The engine's logprobs are not the trainer's, or not finite."""

    def __init__(self, message: str, error: float | None) -> None:
        super().__init__(message)
        self.error = error
        """Largest absolute difference; None when the engine's logprobs cannot be compared."""


async def check(admin: AdminClient, probe: Probe, seconds: float) -> float:
    """The largest absolute difference between the engine's and the trainer's logprobs over the probe.

    Raises:
        ProbeMismatch: it is above the probe's tolerance, or the engine's answer cannot be used.
        AdminError: the engine did not answer in ``seconds``, or with an error.
    """
    raw = await admin.complete(prompt_logprobs_body(probe.token_ids), seconds)
    try:
        logprobs = parse_prompt_logprobs(raw, probe.token_ids)
    except EpisodeError as error:
        raise ProbeMismatch(f"probe: {error.message}", None) from error
    return compare(probe, logprobs)


def compare(probe: Probe, logprobs: list[float]) -> float:
    """The largest absolute difference of ``logprobs`` (one per probe token but the first) from the probe.

    Raises:
        ProbeMismatch: it is above the tolerance, or not a number.
    """
    worst = max(abs(ours - theirs) for ours, theirs in zip(logprobs, probe.logprobs, strict=True))
    if math.isfinite(worst) and worst <= probe.tolerance:
        return worst
    message = f"probe: logprobs differ from the trainer's by {worst:.3g}, accepted is up to {probe.tolerance:.3g}"
    raise ProbeMismatch(message, worst if math.isfinite(worst) else None)
