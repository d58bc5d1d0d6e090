"""Policies as a fake engine holds them: announcements, and the closed forms of what a version computes."""

import numpy as np
from numpy.typing import NDArray

from echorl_core.routing import RouterShape
from echorl_core.wire.weights import PolicyAnnouncement, Probe

PROBE_IDS = [1, 2, 3, 4]


def logprob(version: int, position: int) -> float:
    """Natural-log probability of any token at ``position`` (0-based) under ``version``."""
    return -1.0 - 0.01 * position - 0.1 * version


def probe_of(version: int, *, tolerance: float = 1e-3) -> Probe:
    """What the trainer would send with ``version``."""
    logprobs = [logprob(version, position) for position in range(1, len(PROBE_IDS))]
    return Probe(token_ids=PROBE_IDS, logprobs=logprobs, tolerance=tolerance)


def policy(version: int, *, attempt: int = 1, probe: bool = True) -> PolicyAnnouncement:
    """An announcement of ``version``, with its probe."""
    return PolicyAnnouncement(
        attempt=attempt,
        version=version,
        digest=f"digest-{attempt}-{version}",
        url=f"http://trainer/weights/a{attempt}/v{version}/manifest.json",
        size_bytes=1,
        seconds_gather=0.0,
        probe=probe_of(version) if probe else None,
    )


def routed(shape: RouterShape, by: int, positions: range) -> NDArray[np.integer]:
    """Which experts tokens at these positions go to, [n, all layers, k], zeros in layers that have none."""
    found = np.zeros((len(positions), shape.dense_layers + shape.layers, shape.top_k), shape.dtype)
    for row, position in enumerate(positions):
        for layer in range(shape.layers):
            first = by + 3 * position + layer
            found[row, shape.dense_layers + layer] = [(first + place) % shape.experts for place in range(shape.top_k)]
    return found
