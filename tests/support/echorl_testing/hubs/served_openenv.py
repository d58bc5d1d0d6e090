"""A server of OpenEnv of one version."""

from collections.abc import Iterator
from contextlib import contextmanager

from echorl_testing.hubs import served as servers

VERSION = "0.10.0"


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that runs meanwhile; below it the environments of ``openenv_server.py`` by name."""
    python = servers.installed(f"openenv-{VERSION}", [f"openenv=={VERSION}"])
    with servers.served(python, "openenv_server.py", "/game/health") as address:
        yield address
