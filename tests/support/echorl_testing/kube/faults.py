"""What the fault proxy can do to a request, and to which requests.

A fault is made by one of the functions below and put into force by ``FaultProxy``. ``when`` says which requests it is
for, ``nth`` picks one of those, ``times`` ends it by itself. With ``after`` the request reaches the API server first
and only the client is left in the dark: a write that happened, though its writer cannot know.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

_PATCHES = {"application/apply-patch+yaml": "apply"}
_VERBS = {"POST": "create", "PUT": "update", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """One request as the proxy sees it."""

    number: int
    """From 1, in order of arrival."""
    at: float
    """Monotonic seconds."""
    verb: str
    """get, list, watch, create, update, apply, patch, delete, deletecollection."""
    path: str
    query: Mapping[str, str]
    resource: str
    """Plural; empty for what is no object, such as ``/version``."""
    subresource: str
    namespace: str
    name: str
    user_agent: str
    body: bytes

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""
        return self.verb not in ("get", "list", "watch")

    def json(self) -> Any:
        """The body, decoded; None if there is none."""
        return json.loads(self.body) if self.body else None


def describe(
    number: int, at: float, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> Request:
    """Take a request's path and method apart."""
    parts = path.strip("/").split("/")
    # /api/v1/... or /apis/GROUP/VERSION/...
    rest = parts[2:] if parts[0] == "api" else parts[3:] if parts[0] == "apis" else []
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, name, subresource = (*rest, "", "", "")[:3]
    content_type = headers.get("Content-Type", "").split(";")[0]
    if method == "GET":
        verb = "watch" if query.get("watch") in ("1", "true") else "get" if name or not resource else "list"
    elif method == "DELETE" and not name:
        verb = "deletecollection"
    else:
        verb = _PATCHES.get(content_type, "patch") if method == "PATCH" else _VERBS[method]
    agent = headers.get("User-Agent", "")
    return Request(number, at, verb, path, dict(query), resource, subresource, namespace, name, agent, body)


When = Callable[[Request], bool]


def everything(_: Request) -> bool:
    """All requests."""
    return True


def writes(request: Request) -> bool:
    """All that change something, but Leases: an operator that cannot renew its lease has to end."""
    return request.is_write and request.resource != "leases"


def applies(request: Request) -> bool:
    """Server-side applies."""
    return request.verb == "apply"


def watches(request: Request) -> bool:
    """Watches."""
    return request.verb == "watch"


def lists_and_watches(request: Request) -> bool:
    """Both halves of an informer."""
    return request.verb in ("list", "watch")


def leases(request: Request) -> bool:
    """What leader election does."""
    return request.resource == "leases"


def writes_of(resource: str) -> When:
    """Writes of one kind, Leases too."""
    return lambda request: request.is_write and request.resource == resource


def of(
    *,
    verb: str | None = None,
    resource: str | None = None,
    name: str | None = None,
    subresource: str | None = None,
    user_agent: str | None = None,
) -> When:
    """Requests with all that is given; ``user_agent`` is the beginning of one."""

    def matches(request: Request) -> bool:
        wanted = {"verb": verb, "resource": resource, "name": name, "subresource": subresource}
        return all(value is None or getattr(request, key) == value for key, value in wanted.items()) and (
            user_agent is None or request.user_agent.startswith(user_agent)
        )

    return matches


@dataclass(frozen=True)
class Answer:
    """Reply with a failure in the API server's form."""

    status: int
    reason: str = ""
    message: str = "injected fault"
    retry_after_s: int | None = None

    def body(self) -> bytes:
        """A ``Status`` object."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        return json.dumps(status).encode()


@dataclass(frozen=True)
class Drop:
    """Close the connection without a reply."""


@dataclass(frozen=True)
class Hang:
    """Give no reply until the fault ends; then close the connection."""


@dataclass(frozen=True)
class StreamError:
    """Open the watch, send one ``ERROR`` event, end it."""

    answer: Answer


@dataclass(frozen=True)
class Silence:
    """Hold back all that a watch says, its end included, until the fault ends: a network that lost the connection."""


@dataclass(frozen=True)
class Delay:
    """Hand on each line of a watch so much later: a stale view."""

    seconds: float


@dataclass(frozen=True)
class Callback:
    """Call something, then go on as usual: to kill a process at an exact request."""

    function: Callable[[Request], None]


Effect = Answer | Drop | Hang | StreamError | Silence | Delay | Callback


@dataclass
class Fault:
    """One fault and what it has done."""

    effect: Effect
    when: When = everything
    after: bool = False
    nth: int | None = None
    """Only the n-th matching request since the fault is in force; from 1."""
    times: int | None = None
    """So many requests, then never again."""
    seen: int = 0
    """Matching requests."""
    hits: int = 0
    """Requests that it disturbed."""
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has its first effect; of one that comes ``after``, once the API server has answered."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the proxy takes it away."""

    def strikes(self, request: Request) -> bool:
        """Whether it disturbs this request; counts it."""
        if self.ended.is_set() or not self.when(request):
            return False
        self.seen += 1
        if (self.nth is not None and self.seen != self.nth) or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


def fail(
    status: int,
    when: When = everything,
    *,
    reason: str = "",
    message: str = "",
    after: bool = False,
    nth: int | None = None,
    times: int | None = None,
) -> Fault:
    """Answer with this status; a 403 without a message is the authorizer's."""
    said = message or ('User "injected" cannot do this' if status == 403 else "injected fault")
    return Fault(Answer(status, reason or _REASONS.get(status, ""), said), when, after, nth, times)


def conflict(when: When = applies, *, times: int | None = None) -> Fault:
    """409, as if somebody else had changed the object."""
    message = "Operation cannot be fulfilled: the object has been modified; please apply your changes to the latest"
    return fail(409, when, message=message, times=times)


def throttle(retry_after_s: int = 1, when: When = everything, *, times: int | None = None) -> Fault:
    """429 with Retry-After."""
    message = "Too many requests, please try again later."
    return Fault(Answer(429, "TooManyRequests", message, retry_after_s), when, times=times)


def expire(when: When = watches, *, times: int | None = None) -> Fault:
    """410: the resource version is too old."""
    return fail(410, when, message="too old resource version", times=times)


def stream_error(code: int = 500, when: When = watches, *, times: int | None = None) -> Fault:
    """Every watch that begins gets an ``ERROR`` event and ends. For running watches: ``FaultProxy.end_watches``."""
    answer = Answer(code, _REASONS.get(code, ""), "injected stream error")
    return Fault(StreamError(answer), when, times=times)


def drop(when: When = everything, *, after: bool = False, nth: int | None = None, times: int | None = None) -> Fault:
    """Close the connection."""
    return Fault(Drop(), when, after, nth, times)


def hang(when: When = everything, *, after: bool = False, nth: int | None = None, times: int | None = None) -> Fault:
    """No reply while the fault is in force."""
    return Fault(Hang(), when, after, nth, times)


def silence(when: When = watches) -> Fault:
    """Running and new watches say nothing while the fault is in force; then they say all at once."""
    return Fault(Silence(), when)


def delay(seconds: float, when: When = watches) -> Fault:
    """Running and new watches are so far behind."""
    return Fault(Delay(seconds), when)


def call(function: Callable[[Request], None], when: When = writes, *, nth: int, after: bool = False) -> Fault:
    """Call ``function`` at the n-th matching request, before it is passed on or after it was answered upstream."""
    return Fault(Callback(function), when, after, nth)


_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
