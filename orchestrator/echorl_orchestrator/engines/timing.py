"""How often engines are looked at, and how long their answers may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds, unless a field says otherwise. What a run may configure is in its config, not here."""

    identity_s: float = 1.0
    """Between two looks at an engine's identity and health."""
    silence_s: float = 10.0
    """Without any answer for so long, a connected engine is lost. Longer than a stalled event loop; a refused
    connection, a failed health check and a vanished address are seen at once and do not wait for it."""
    needed_s: float = 5.0
    """That an engine which no other one can stand in for is needed, as it is told at every look: longer than a stalled
    event loop."""
    metrics_s: float = 2.0
    """Between two reads of an engine's metrics."""
    look_s: float = 5.0
    """For an answer to a look: identity, health, metrics."""
    admin_s: float = 30.0
    """For one short admin call; these wait for the engine's current step."""
    stage_wait_s: float = 5.0
    """That an engine holds the question whether a version is staged, until it is or this has passed; also what it costs
    if the engine does not notice."""
    stage_again_s: float = 0.1
    """At least, between two such questions: one that is answered at once is not asked in a tight loop."""
    retry_first_s: float = 1.0
    """Before the first retry of a failed update; doubles up to ``retry_max_s``."""
    retry_max_s: float = 30.0
    update_tries: int = 3
    """Failed updates in a row after which an engine that still serves an older version is quarantined."""
    generate_s: float = 3600.0
    """For one completion, waiting under pauses included."""
    stall_s: float = 300.0
    """Without a frame for so long, or up to a quarter more, a stream that has begun is given up. Longer than a request
    waits that vLLM has put back for want of cache. Before its first frame a request may be in a queue, which
    ``generate_s`` bounds."""
    elsewhere_s: float = 5.0
    """That a turn whose stream broke off waits for another engine before it asks the same one again; longer than it
    takes to see that an engine is gone."""
    connect_s: float = 10.0
    keep_alive_s: float = 2.0
    """Shorter than the server's five seconds, so that no request is sent on a connection that is being closed."""
