"""HTTP connections to other pods, whose addresses may lead nowhere for a while."""

import http.client

CONNECT_S = 3.0
"""Until a connection is there. A pod that is gone may not even refuse one, and the next try finds the pod after it."""


def connected(host: str, port: int, timeout_s: float) -> http.client.HTTPConnection:
    """A connection that is there, each of whose waits from here on takes ``timeout_s`` at the most.

    Raises:
        OSError: nobody answered in time.
    """
    connection = http.client.HTTPConnection(host, port, timeout=min(CONNECT_S, timeout_s))
    connection.connect()
    connection.sock.settimeout(timeout_s)
    return connection
