"""Names to addresses: every address that a configured name resolves to is an engine."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

log = structlog.get_logger()

Resolver = Callable[[str, int], set[str]]
"""Host and port to addresses (``ip:port``). Blocking; raises socket.gaierror."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


def split(name: str) -> tuple[str, int]:
    """Host and port of ``host:port`` (an IPv6 host in brackets).

    Raises:
        ValueError: the name has no host or no valid port.
    """
    host, _, port = name.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"engines.names: found {name!r}, accepted is host:port")
    return host.strip("[]"), int(port)


def resolve(host: str, port: int) -> set[str]:
    """The addresses of a name, by the system's resolver."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {
        f"[{address[0]!s}]:{port}" if family == socket.AF_INET6 else f"{address[0]!s}:{port}"
        for family, _, _, _, address in answers
    }


class Discovery:
    """Resolves the configured names. A resolver that fails for a moment loses no engine."""

    def __init__(self, names: list[str], resolver: Resolver = resolve) -> None:
        self._names = [split(name) for name in names]
        self._resolver = resolver
        self._known: dict[tuple[str, int], set[str]] = {}
        # Threads of its own: a resolver that hangs must not use up the loop's default ones.
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="resolve")

    async def addresses(self) -> set[str]:
        """The addresses of all names. A name that no longer exists has none; on other failures the last ones stand."""
        loop = asyncio.get_running_loop()
        results = await asyncio.gather(
            *(loop.run_in_executor(self._threads, self._resolver, host, port) for host, port in self._names),
            return_exceptions=True,
        )
        for name, result in zip(self._names, results, strict=True):
            if isinstance(result, socket.gaierror):
                if result.errno in _NO_SUCH_NAME:
                    self._known[name] = set()
                else:
                    log.warning("engine name not resolved, last addresses stand", host=name[0], error=str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                self._known[name] = result
        return set().union(*self._known.values())

    def close(self) -> None:
        """End the threads; one that hangs in the resolver is left behind."""
        self._threads.shutdown(wait=False, cancel_futures=True)
