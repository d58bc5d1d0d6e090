"""A small server that speaks the API server's wire format, for tests of how the client handles each reply.

It keeps objects with resource versions, lists them in pages and streams their changes. It validates nothing, and its
apply is a shallow merge: what Kubernetes itself does is tested against the real one.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Self

from aiohttp import web

from echorl_testing.ports import free_port

Object = dict[str, Any]


class WireApi:
    """Serves any resource under ``/api`` and ``/apis`` on a free port while entered."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], Object] = {}
        """By collection path and name."""
        self.history: list[tuple[int, str, str, Object]] = []
        """(version, collection path, event type, object)."""
        self.oldest = 0
        """Watches from an older version are answered 410."""
        self.requests: list[tuple[str, str, Mapping[str, str], Mapping[str, str], Any]] = []
        """(method, path, query, headers, body)."""
        self.bookmark_s = 0.05
        """How often an idle watch gets a bookmark; 0: never."""
        self.webhook: Callable[[Object], Object] = lambda body: body
        """What an admission webhook makes of every object that is written."""
        self.deletion: Callable[[Object], Object] = lambda gone: {
            "kind": "Status",
            "status": "Success",
            "details": {"name": gone["metadata"]["name"]},
        }
        """What a deletion is answered with."""
        self._changed = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        port = int(self.url.rsplit(":", 1)[1]) if self.url else free_port()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def set(self, collection: str, name: str, **content: Any) -> Object:
        """Create or replace an object, as somebody else would."""
        before = self.objects.get((collection, name))
        uid = before["metadata"]["uid"] if before else f"uid-{self.version + 1}"
        metadata = {"name": name, "namespace": _namespace(collection), "uid": uid, **content.pop("metadata", {})}
        return await self._store("MODIFIED" if before else "ADDED", collection, {**content, "metadata": metadata})

    async def remove(self, collection: str, name: str) -> None:
        """Delete an object."""
        gone = self.objects.pop((collection, name))
        await self._record("DELETED", collection, gone)

    async def _store(self, kind: str, collection: str, body: Object) -> Object:
        body = self.webhook(json.loads(json.dumps(body)))
        self.objects[collection, body["metadata"]["name"]] = body
        await self._record(kind, collection, body)
        return body

    async def _record(self, kind: str, collection: str, body: Object) -> None:
        async with self._changed:
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.history.append((self.version, collection, kind, json.loads(json.dumps(body))))
            self._changed.notify_all()

    async def _handle(self, raw: web.Request) -> web.StreamResponse:
        text = await raw.read()
        body: Any = json.loads(text) if text else None
        self.requests.append((raw.method, raw.path, dict(raw.query), dict(raw.headers), body))
        path = raw.path.removesuffix("/status")
        collection, name = (path, "") if _is_collection(path) else path.rsplit("/", 1)
        if raw.method == "GET" and raw.query.get("watch"):
            return await self._watch(raw, collection)
        if raw.method == "GET" and not name:
            return self._list(raw, collection)
        if raw.method == "POST":
            return await self._create(collection, body)
        known = self.objects.get((collection, name))
        if raw.method == "PATCH" and "apply" in raw.content_type:
            return web.json_response(await self._merge(collection, name, known or {}, body))
        if known is None:
            return failure(404, "NotFound", f"{name} not found")
        return await self._change(raw, collection, known, body)

    async def _change(self, raw: web.Request, collection: str, known: Object, body: Any) -> web.Response:
        name, wanted = known["metadata"]["name"], (body or {}).get("metadata", {}).get("resourceVersion")
        if raw.method == "GET":
            return web.json_response(known)
        if wanted not in (None, known["metadata"]["resourceVersion"]):
            return failure(409, "Conflict", "the object has been modified")
        if raw.method != "DELETE":
            return web.json_response(await self._merge(collection, name, known, body))
        uid = (body or {}).get("preconditions", {}).get("uid")
        if uid not in (None, known["metadata"]["uid"]):
            return failure(409, "Conflict", f"Precondition failed: UID in precondition: {uid}, UID in object meta: x")
        await self.remove(collection, name)
        return web.json_response(self.deletion(known))

    async def _merge(self, collection: str, name: str, known: Object, body: Object) -> Object:
        metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "resourceVersion"}
        return await self.set(
            collection, name, **{**known, **body, "metadata": {**known.get("metadata", {}), **metadata}}
        )

    async def _create(self, collection: str, body: Object) -> web.Response:
        name = body["metadata"]["name"]
        if (collection, name) in self.objects:
            return failure(409, "AlreadyExists", f"{name} already exists")
        return web.json_response(await self.set(collection, name, **body), status=201)

    def _list(self, raw: web.Request, collection: str) -> web.Response:
        limit, start = int(raw.query.get("limit", "500")), int(raw.query.get("continue") or "0")
        found = [body for (where, _), body in sorted(self.objects.items()) if where == collection]
        more = str(start + limit) if start + limit < len(found) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        return web.json_response({"metadata": metadata, "items": found[start : start + limit]})

    async def _watch(self, raw: web.Request, collection: str) -> web.StreamResponse:
        seen, seconds = int(raw.query["resourceVersion"]), float(raw.query["timeoutSeconds"])
        if seen < self.oldest:
            return failure(410, "Expired", "too old resource version")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(raw)
        try:
            async with asyncio.timeout(seconds):
                await self._feed(response, collection, seen)
        except TimeoutError:
            pass
        return response

    async def _feed(self, response: web.StreamResponse, collection: str, seen: int) -> None:
        while True:
            for version, where, kind, body in self.history:
                if version > seen and where == collection:
                    await _send(response, kind, body)
            seen = self.version
            try:
                async with asyncio.timeout(self.bookmark_s or None), self._changed:
                    await self._changed.wait_for(lambda seen=seen: self.version > seen)  # type: ignore[misc]
            except TimeoutError:
                await _send(response, "BOOKMARK", {"metadata": {"resourceVersion": str(seen)}})


async def _send(response: web.StreamResponse, kind: str, body: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")


def failure(status: int, reason: str, message: str, **details: Any) -> web.Response:
    """A reply in the form of a ``Status`` object."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}
    return web.json_response({**body, "details": details}, status=status)


def _is_collection(path: str) -> bool:
    rest = path.strip("/").split("/")
    rest = rest[2:] if rest[0] == "api" else rest[3:]
    return len(rest) in (1, 3)


def _namespace(collection: str) -> str:
    parts = collection.split("/")
    return parts[parts.index("namespaces") + 1] if "namespaces" in parts else ""
