"""Ports for servers that tests start in other processes."""

from echorl_cli.local import ports

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, below those that the kernel gives to whoever asks for any.

    So no client takes one between this call and the start of the server that it is for; and none is given out twice,
    as that server may be slow to listen.
    """
    found = ports.free_ports(count, taken=_given)
    _given.update(found)
    return found


def free_port() -> int:
    """One of ``free_ports``."""
    return free_ports(1)[0]
