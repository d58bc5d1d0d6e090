"""Who may see the pages: whoever is on this machine, or has the token where they are served to others.

A page of somebody else's in the same browser may not: names that were made to lead here (DNS rebinding) and requests
from other origins are refused. Pages may load nothing from elsewhere.
"""

import hmac
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN = "token"  # noqa: S105 - the name of a parameter
_HERE = {"localhost", "127.0.0.1", "::1"}
# The libraries' own pages hold inline scripts and styles, and compile templates and expressions.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """An ASGI application before another."""

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        """``token``: what a visitor must bring; empty: visitors must be on this machine."""
        self.app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed, with headers that keep the page to itself."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refused = self._refusal(scope, headers)
        if refused is None:
            await self.app(scope, receive, _with_policy(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 4403})
        else:
            await refused(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        host = headers.get("host", "")
        if not self._token and _hostname(host) not in _HERE:
            return PlainTextResponse(f"found host {host[:80]!r}; accepted: localhost\n", 403)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("a page of another site asks; it gets nothing\n", 403)
        return self._without_token(scope, headers, host) if self._token else None

    def _without_token(self, scope: Scope, headers: Mapping[str, str], host: str) -> Response | None:
        cookie = "echorl_view_" + "".join(c if c.isalnum() else "_" for c in host)
        query = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
        if self._same(dict(query).get(TOKEN, "")):
            rest = urlencode([(name, value) for name, value in query if name != TOKEN])
            path = "/" + str(scope["path"]).lstrip("/")
            found = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            found.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            return found
        try:
            kept = SimpleCookie(headers.get("cookie", "")).get(cookie)
        except CookieError:
            kept = None
        if kept is not None and self._same(kept.value):
            return None
        return PlainTextResponse("open the address that echorl view printed, with its token\n", 401)

    def _same(self, found: str) -> bool:
        return hmac.compare_digest(found.encode(), self._token.encode())


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _with_policy(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["Content-Security-Policy"] = POLICY
            headers["Referrer-Policy"] = "no-referrer"
            headers["X-Content-Type-Options"] = "nosniff"
        await send(message)

    return sent
