"""Ports for servers that tests start in other processes."""

from echorl_cli.local.ports import free_ports


def free_port() -> int:
    """A port that nobody listens on now, below those that the kernel gives to whoever asks for any.

    So no client and no other server takes it between this call and the start of the one that it is for.
    """
    return free_ports(1)[0]
