"""Tests that live at the same time, each in a namespace of its own: most of what happens in a cluster is waiting."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import pytest

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.cluster.namespaces import make_namespace
from echorl_testing.operator.operator_world import World, operating
from echorl_testing.operator.scripted_cluster import scripted

_numbers = itertools.count(1)

P = TypeVar("P")
Ends = dict[str, BaseException | None]
"""By test: what it raised."""


class Together(Generic[P]):
    """Decorates the tests of a module, which keeps it as ``together``; the fixture ``ends`` lives those chosen."""

    def __init__(self, place: Callable[[Api, Connection, str], AbstractAsyncContextManager[P]], at_once: int) -> None:
        """Of tests that look at a ``place``, in a namespace; so many at a time as leave bounds of seconds alone."""
        self._place, self._turn = place, asyncio.Semaphore(at_once)
        self._lives: dict[str, Callable[[P], Awaitable[None]]] = {}

    def __call__(self, life: Callable[[P], Awaitable[None]]) -> Callable[..., None]:
        """The test that tells what came of a life."""
        self._lives[life.__name__] = life

        def test(ends: Ends) -> None:
            _tell(ends, life.__name__)

        return _named_as(life, test)

    def each(self, cases: Sequence[str]) -> Callable[[Callable[[P, str], Awaitable[None]]], Callable[..., None]]:
        """A test of each case, which is the life's second argument."""

        def decorated(life: Callable[[P, str], Awaitable[None]]) -> Callable[..., None]:
            for case in cases:
                self._lives[f"{life.__name__}[{case}]"] = lambda place, case=case: life(place, case)  # type: ignore[misc]

            def test(ends: Ends, case: str) -> None:
                _tell(ends, f"{life.__name__}[{case}]")

            return pytest.mark.parametrize("case", cases)(_named_as(life, test))

        return decorated

    async def live(self, api: Api, connection: Connection, chosen: Collection[str]) -> Ends:
        """Live all the chosen ones."""

        async def lived(life: Callable[[P], Awaitable[None]]) -> BaseException | None:
            async with self._turn:
                try:
                    await self._in_a_namespace(life, api, connection)
                except Exception as error:
                    return error
                return None

        lives = {name: life for name, life in self._lives.items() if name in chosen}
        return dict(zip(lives, await asyncio.gather(*map(lived, lives.values())), strict=True))

    async def _in_a_namespace(self, life: Callable[[P], Awaitable[None]], api: Api, connection: Connection) -> None:
        namespace = f"together-{next(_numbers)}"
        await asyncio.to_thread(make_namespace, api, namespace)
        try:
            async with self._place(api, connection, namespace) as place:
                await life(place)
        finally:
            await asyncio.to_thread(api.delete, f"/api/v1/namespaces/{namespace}")


@asynccontextmanager
async def operated(api: Api, connection: Connection, namespace: str) -> AsyncIterator[World]:
    """A namespace with an operator at work and played pods."""
    async with scripted(api, namespace) as cluster, operating(connection.kubeconfig, namespace) as operator:
        yield World(api, namespace, cluster, operator)


def _tell(ends: Ends, name: str) -> None:
    error = ends[name]
    if error is not None:
        raise error


def _named_as(life: Callable[..., Awaitable[None]], test: Callable[..., None]) -> Callable[..., None]:
    test.__name__ = test.__qualname__ = life.__name__
    test.__module__, test.__doc__ = life.__module__, life.__doc__
    return test
