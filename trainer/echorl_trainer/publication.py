"""One policy version on its way from the loop to its readers."""

import time
from concurrent.futures import Future

from torch import Tensor

from echorl_core.wire.weights import PolicyAnnouncement
from echorl_trainer.copier import Arrival
from echorl_trainer.snapshots import Snapshot


class Publication:
    """One version on its way to its readers."""

    def __init__(self, snapshot: Snapshot, arrival: Arrival, *, deadline_s: float) -> None:
        self.version, self.snapshot, self.arrival = snapshot.version, snapshot, arrival
        self.began = time.monotonic()
        self.seconds_gather = 0.0
        self.probe: Future[Arrival] = Future()
        """The probe's logprobs on their way, once its forward was launched."""
        self.outcome: Future[PolicyAnnouncement] = Future()
        self._deadline_s = deadline_s

    def result(self) -> PolicyAnnouncement:
        """Wait until the version is visible; what to announce.

        Raises:
            NonFinite: its weights, or the probe's logprobs, are NaN or infinite; it never becomes visible.
            TimeoutError: it took longer than the deadline.
        """
        return self.outcome.result(self._deadline_s)

    def probed(self) -> Tensor:
        """Wait for the probe's logprobs: float64 [tokens - 1].

        Raises:
            TimeoutError: its forward was not launched before the deadline.
        """
        (scores,) = self.probe.result(self._deadline_s).wait()
        return scores


def not_finite(snapshot: Snapshot) -> str:
    """Which of its tensors is, for people."""
    for file in snapshot.files:
        for name, tensor in file.tensors().items():
            if bad := int(tensor.numel() - tensor.isfinite().sum()):
                return f"{name}: {bad} of {tensor.numel()} values are NaN or infinite"
    return "values were NaN or infinite before their copy"
