"""A reverse proxy in front of the API server that misbehaves on demand, and remembers what was asked.

    async with FaultProxy(Upstream.from_kubeconfig(path)) as proxy:
        proxy.write_kubeconfig(tmp_path / "kubeconfig")   # for the operator, kubectl, kopf
        with proxy.fault(faults.fail(503)):               # in force inside the block
            ...
        fault = proxy.add(faults.drop(faults.writes, after=True, nth=3))
        await until(lambda: fault.hits == 1)
        proxy.end_watches(410)                            # an ERROR event into every running watch
        assert len(proxy.writes_by("echorl-operator")) < 40

Faults are described in ``faults.py``; the first that strikes decides. Requests keep their credentials; those without
any get the kubeconfig's. exec, attach and port-forward do not pass. A client may repeat by itself what was dropped:
aiohttp does so once, with GET, PUT and DELETE on a connection that it used before.
"""

import json
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from kubernetes.aio import client, config

from echorl_testing.kube import faults
from echorl_testing.kube.faults import Answer, Callback, Drop, Fault, Hang, Request, Silence, StreamError
from echorl_testing.kube.watch_relay import WatchRelay

_NOT_PASSED = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "upgrade", "accept-encoding"}
)
_CONNECT_S = 30.0
"""Hundreds of watches may open their connections at one moment."""


@dataclass
class Upstream:
    """The API server behind the proxy."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """For requests that bring no credentials."""
    ssl_own: ssl.SSLContext | bool = True
    """With our client certificate, for the same requests."""
    ssl_plain: ssl.SSLContext | bool = True
    """Without: the server would believe a certificate rather than a token."""

    @classmethod
    async def from_kubeconfig(cls, path: Path) -> "Upstream":
        """The current context of a kubeconfig."""
        found = client.Configuration(host="http://localhost")
        found.api_key = {}
        await config.load_kube_config(  # type: ignore[no-untyped-call]
            str(path), client_configuration=found, persist_config=False
        )
        token = await found.get_api_key_with_prefix("BearerToken")
        headers = {"Authorization": token} if token else {}
        if not str(found.host).startswith("https"):
            return cls(str(found.host), headers)
        contexts = [ssl.create_default_context(cafile=found.ssl_ca_cert) for _ in range(2)]
        for context in contexts:
            if not found.verify_ssl:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if found.cert_file:
            contexts[0].load_cert_chain(found.cert_file, found.key_file)
        return cls(str(found.host), headers, contexts[0], contexts[1])


@dataclass
class Record:
    """One request and what the client got."""

    request: Request
    status: int | None = None
    """None: no reply (yet)."""
    upstream_status: int | None = None
    """What the API server said; None if it was not asked."""
    fault: Fault | None = None


class FaultProxy:
    """Listens on a free port of 127.0.0.1 while entered."""

    def __init__(self, upstream: Upstream, *, tls: ssl.SSLContext | None = None, ca: Path | None = None) -> None:
        """With ``tls`` it serves HTTPS; ``ca`` is the certificate that clients are to trust."""
        self._upstream, self._tls, self._ca = upstream, tls, ca
        self._faults: list[Fault] = []
        self._relays: set[WatchRelay] = set()
        self._count = 0
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self.url = ""
        self.records: list[Record] = []
        """All requests, in order of arrival."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"{'http' if self._tls is None else 'https'}://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def add(self, fault: Fault) -> Fault:
        """Put a fault into force."""
        self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """End a fault; one that has ended already is fine."""
        fault.ended.set()
        if fault in self._faults:
            self._faults.remove(fault)

    def clear(self) -> None:
        """End all faults."""
        for fault in list(self._faults):
            self.remove(fault)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[Fault]:
        """A fault for the time of a block."""
        try:
            yield self.add(fault)
        finally:
            self.remove(fault)

    def end_watches(self, code: int | None = None, when: faults.When = faults.everything) -> int:
        """End running watches: with an ``ERROR`` event of this code, or by closing the connection. Returns how many."""
        line = None if code is None else _error_line(Answer(code, message="injected stream error"))
        struck = [relay for relay in self._relays if when(relay.request)]
        for relay in struck:
            relay.interrupt(line)
        return len(struck)

    @property
    def running_watches(self) -> list[Request]:
        """Watches that are open now."""
        return [relay.request for relay in self._relays]

    def writes_by(self, user_agent: str = "") -> list[Record]:
        """Writes of clients whose User-Agent begins so; all of them by default. Leases are left out."""
        return [
            one for one in self.records if faults.writes(one.request) and one.request.user_agent.startswith(user_agent)
        ]

    def write_kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """A kubeconfig that leads here; without a token, requests get the upstream's credentials."""
        cluster = {"server": self.url} | ({} if self._ca is None else {"certificate-authority": str(self._ca)})
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
            "clusters": [{"name": "proxy", "cluster": cluster}],
            "users": [{"name": "proxy", "user": {} if token is None else {"token": token}}],
        }
        path.write_text(json.dumps(content))
        return path

    async def _handle(self, raw: web.Request) -> web.StreamResponse:
        self._count += 1
        request = faults.describe(
            self._count, time.monotonic(), raw.method, raw.path, raw.query, raw.headers, await raw.read()
        )
        record = Record(request)
        self.records.append(record)
        struck = self._struck(request)
        record.fault = struck
        if struck is not None and not struck.after:
            response = await self._strike(raw, record, struck)
            if response is not None:
                return response
        if request.verb == "watch":
            return await self._watch(raw, record)
        return await self._pass_on(raw, record, struck)

    def _struck(self, request: Request) -> Fault | None:
        return next(
            (one for one in self._faults if not _shapes_watches(one) and one.strikes(request)),
            None,
        )

    async def _strike(self, raw: web.Request, record: Record, fault: Fault) -> web.StreamResponse | None:
        """Do what the fault does; None: go on as usual."""
        fault.struck.set()
        match fault.effect:
            case Callback(function):
                function(record.request)
                return None
            case Answer() as answer:
                return _answered(record, answer)
            case StreamError(answer):
                record.status = 200
                response = web.StreamResponse(headers={"Content-Type": "application/json"})
                await response.prepare(raw)
                await response.write(_error_line(answer))
                return response
            case Hang():
                await fault.ended.wait()
            case Drop():
                pass
            case _:
                return None
        if raw.transport is not None:
            raw.transport.abort()
        raise web.HTTPServiceUnavailable

    async def _pass_on(self, raw: web.Request, record: Record, struck: Fault | None) -> web.StreamResponse:
        async with self._ask(raw, record.request) as reply:
            record.upstream_status = reply.status
            if record.request.subresource == "log":
                return await _stream(raw, record, reply)
            body = await reply.read()
        if struck is not None and struck.after:
            response = await self._strike(raw, record, struck)
            if response is not None:
                return response
        record.status = reply.status
        return web.Response(status=reply.status, body=body, headers=_passed(reply.headers))

    async def _watch(self, raw: web.Request, record: Record) -> web.StreamResponse:
        async with self._ask(raw, record.request) as reply:
            record.status = record.upstream_status = reply.status
            if reply.status != 200:
                return web.Response(status=reply.status, body=await reply.read(), headers=_passed(reply.headers))
            response = web.StreamResponse(headers=_passed(reply.headers))
            await response.prepare(raw)
            relay = WatchRelay(record.request, self._faults)
            self._relays.add(relay)
            try:
                await relay.run(reply.content, response)
            finally:
                self._relays.discard(relay)
            if relay.aborted and raw.transport is not None:
                raw.transport.abort()
            return response

    def _ask(self, raw: web.Request, request: Request) -> "aiohttp.client._RequestContextManager":
        assert self._session is not None
        headers = {**_passed(raw.headers), "Accept-Encoding": "identity"}
        has_own = "Authorization" in raw.headers
        return self._session.request(
            raw.method,
            self._upstream.url.rstrip("/") + raw.path_qs,
            headers=headers if has_own else {**headers, **self._upstream.headers},
            data=request.body or None,
            ssl=self._upstream.ssl_plain if has_own else self._upstream.ssl_own,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            allow_redirects=False,
        )


def _shapes_watches(fault: Fault) -> bool:
    return isinstance(fault.effect, Silence | faults.Delay)


def _passed(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in _NOT_PASSED}


def _answered(record: Record, answer: Answer) -> web.Response:
    record.status = answer.status
    headers = {"Content-Type": "application/json"}
    if answer.retry_after_s is not None:
        headers["Retry-After"] = str(answer.retry_after_s)
    return web.Response(status=answer.status, body=answer.body(), headers=headers)


def _error_line(answer: Answer) -> bytes:
    return b'{"type":"ERROR","object":' + answer.body() + b"}\n"


async def _stream(raw: web.Request, record: Record, reply: aiohttp.ClientResponse) -> web.StreamResponse:
    record.status = reply.status
    response = web.StreamResponse(status=reply.status, headers=_passed(reply.headers))
    await response.prepare(raw)
    with suppress(ConnectionError, aiohttp.ClientError):
        async for chunk in reply.content.iter_any():
            await response.write(chunk)
    return response
