"""A cluster as the user may see it, and what a command says when it cannot."""

import asyncio
import difflib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import typer

from echorl_cli.cluster.kubeconfig import NoSuchPlace, Place, place
from echorl_core import __version__
from echorl_core.names import ExitCode
from echorl_operator import names
from echorl_operator.kube import credentials, errors
from echorl_operator.kube.connection import Call, Connection
from echorl_operator.kube.resources import RUN, Resource
from echorl_operator.metrics import Metrics

TIMEOUT_S = 10.0
_MOST_NAMES = 10


class Told(Exception):
    """What the user asked for cannot be shown; the message says why."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class Cluster:
    """Reads with the user's rights."""

    def __init__(self, connection: Connection, where: Place, access: credentials.Credentials) -> None:
        self._connection, self.namespace, self.access = connection, where.namespace, access
        self.server = access.server
        self.withheld: set[str] = set()
        """Plurals of what the user may not read."""

    @property
    def connection(self) -> Connection:
        """The connection, for reads of other kinds."""
        return self._connection

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
        """Read one object.

        Raises:
            errors.ApiError: it cannot be read.
        """
        path = resource.path(namespace or self.namespace, name)
        return await self._connection.request(Call("get", path, resource.plural, timeout_s=TIMEOUT_S))

    async def objects(
        self, resource: Resource, query: Mapping[str, str] | None = None, *, everywhere: bool = False
    ) -> list[bytes]:
        """All objects of a kind, in the namespace or everywhere.

        Raises:
            errors.ApiError: they cannot be read.
        """
        path = resource.path(None if everywhere else self.namespace)
        items: list[bytes] = []
        asked = {"limit": "500", **(query or {})}
        while True:
            reply = await self._connection.request(Call("list", path, resource.plural, asked, timeout_s=TIMEOUT_S))
            page = msgspec.json.decode(reply, type=_Page)
            items += [bytes(item) for item in page.items or ()]
            if not page.metadata.continue_:
                return items
            asked["continue"] = page.metadata.continue_

    async def run(self, name: str) -> bytes:
        """One run's object.

        Raises:
            Told: there is none, or it cannot be read.
        """
        try:
            return await self.get(RUN, name)
        except errors.NotFound as error:
            raise Told(await self._why_not_found(name, error), ExitCode.BAD_INPUT) from error

    async def _why_not_found(self, name: str, error: errors.NotFound) -> str:
        if f'"{name}"' not in error.message:
            return f"{self.server} knows no {names.KIND}s: the custom resource {names.PLURAL}.{names.GROUP} is missing"
        try:
            here = [_name(run) for run in await self.objects(RUN)]
        except errors.ApiError:
            return f"namespace {self.namespace}: found no run {name!r}"
        if here:
            likely = difflib.get_close_matches(name, here, n=_MOST_NAMES, cutoff=0.0)
            more = f" and {len(here) - len(likely)} more" if len(here) > len(likely) else ""
            return f"namespace {self.namespace}: found no run {name!r}, there are: {', '.join(likely)}{more}"
        return f"namespace {self.namespace}: found no run {name!r}, nor any other{await self._elsewhere(name)}"

    async def _elsewhere(self, name: str) -> str:
        """Namespaces that have a run of that name, where the user may look."""
        try:
            metas = [_meta(run) for run in await self.objects(RUN, everywhere=True)]
        except errors.ApiError:
            return ""
        places = sorted({meta.namespace for meta in metas if meta.name == name})
        return f"; there is one in: {', '.join(places)}" if places else ""


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


def _meta(body: bytes) -> _Meta:
    return msgspec.json.decode(body, type=_Named).metadata


def _name(body: bytes) -> str:
    return _meta(body).name


@asynccontextmanager
async def reached(where: Place) -> AsyncIterator[Cluster]:
    """The cluster at a place; whatever a call of it fails with is said in the user's words.

    Raises:
        Told: it cannot be reached, or does not let the user in.
    """
    access = (
        credentials.in_cluster()
        if where.kubeconfig is None
        else credentials.from_kubeconfig(Path(where.kubeconfig), where.context)
    )
    try:
        async with Connection(access, Metrics(), user_agent=f"echorl/{__version__}") as connection:
            yield Cluster(connection, where, access)
    except credentials.NoCredentials as error:
        raise Told(str(error), ExitCode.BAD_INPUT) from error
    except errors.Unauthorized as error:
        raise Told(f"{access.server} does not accept these credentials: {error.message}", ExitCode.CRASH) from error
    except errors.Forbidden as error:
        raise Told(f"not allowed: {error.message}", ExitCode.CRASH) from error
    except errors.Unavailable as error:
        raise Told(f"{access.server} does not answer: {error.message}", ExitCode.CRASH) from error
    except errors.ApiError as error:
        raise Told(f"{access.server}: {error}", ExitCode.CRASH) from error


def carry_out(
    work: Callable[[Cluster], Coroutine[Any, Any, str]],
    *,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
) -> None:
    """Print what ``work`` makes of the cluster that the options name; end with a code and a message if it cannot."""

    async def worked() -> str:
        async with reached(place(kubeconfig, context, namespace)) as cluster:
            return await work(cluster)

    try:
        typer.echo(asyncio.run(worked()), nl=False)
    except NoSuchPlace as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.BAD_INPUT) from error
    except Told as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.code) from error
