"""How a call of the API server can fail: one classification, so that callers decide by type and never by text."""

import re
from dataclasses import dataclass

import msgspec

_READS = ("get ", "list ", "watch ")
_RBAC = re.compile(r'User "[^"]*" cannot ')
_UID_PRECONDITION = re.compile(r"UID in (the )?precondition", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that is wrong with an object."""

    field: str
    """Path in the object, such as ``spec.template.spec.containers[0].image``; empty if none is named."""
    message: str
    reason: str = ""
    """``FieldValueInvalid``, ``NamespaceTerminating`` ..."""


class ApiError(Exception):
    """A call that did not do what was asked; the base of all below."""

    def __init__(
        self,
        call: str,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: tuple[Cause, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        """``call``: verb and path. ``status``: the HTTP status; 0 if there was no reply."""
        super().__init__(f"{call}: {status or 'no reply'} {reason}: {message}".replace(" : ", ": "))
        self.call, self.message = call, message
        self.status, self.reason = status, reason
        self.causes = causes
        self.retry_after_s = retry_after_s


class BadRequest(ApiError):
    """400, 405, 406, 413, 415 and other 4xx: the request itself is wrong."""


class Unauthorized(ApiError):
    """401: the credentials are not accepted (any more)."""


class Forbidden(ApiError):
    """403 by the authorizer: the operator lacks a right."""


class Refused(ApiError):
    """Quota, Pod Security, a policy, a webhook or a terminating namespace refuses this object; the message says why."""

    @property
    def namespace_terminating(self) -> bool:
        """Nothing can be created there any more."""
        return any(cause.reason == "NamespaceTerminating" for cause in self.causes)


class NotFound(ApiError):
    """The object does not exist (404)."""


class Conflict(ApiError):
    """409: the object is not at the given resource version or has another uid."""

    @property
    def uid_differs(self) -> bool:
        """The name belongs to another object now."""
        return _UID_PRECONDITION.search(self.message) is not None


class AlreadyExists(Conflict):
    """409 of a create: an object of that name is there."""


class Gone(ApiError):
    """410: the resource version or the continue token is too old."""


class Invalid(ApiError):
    """422: the API server takes the object for invalid; ``causes`` name the fields."""


class TooManyRequests(ApiError):
    """429; ``retry_after_s`` says when to come again, if the server did."""


class Unavailable(ApiError):
    """5xx, no connection, or no reply in time: whether the write happened is unknown."""


class _Cause(msgspec.Struct):
    field: str = ""
    message: str = ""
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: float | None = None  # noqa: N815 - the API's name


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None


_STATUS = msgspec.json.Decoder(_Status)
_BY_CODE: dict[int, type[ApiError]] = {
    401: Unauthorized,
    404: NotFound,
    410: Gone,
    429: TooManyRequests,
}


def from_reply(call: str, status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """The error that a reply of 400 or more says.

    Args:
        call: Verb and path, for the message.
        status: The HTTP status, or the code of an in-stream ``ERROR`` event.
        body: A ``Status`` object; anything else is quoted.
        retry_after: The header's text.
    """
    try:
        reply = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        reply = _Status(message=body[:200].decode(errors="replace").strip())
    details = reply.details or _Details()
    causes = tuple(Cause(cause.field, cause.message, cause.reason) for cause in details.causes or ())
    wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else details.retryAfterSeconds
    kind = _kind(status, reply, reads=call.startswith(_READS))
    return kind(call, reply.message, status=status, reason=reply.reason, causes=causes, retry_after_s=wait)


def _kind(status: int, reply: _Status, *, reads: bool) -> type[ApiError]:
    if status == 403:
        # Admission looks at writes alone.
        return Forbidden if reads or _RBAC.search(reply.message) or not reply.message else Refused
    if status == 409:
        return AlreadyExists if reply.reason == "AlreadyExists" else Conflict
    if status == 422:
        return Refused if _denied(reply.message) else Invalid
    if status >= 500:
        return Unavailable
    return _BY_CODE.get(status, BadRequest)


def _denied(message: str) -> bool:
    """An admission policy's refusal comes as 422 although no field is wrong."""
    return "ValidatingAdmissionPolicy" in message or "admission webhook" in message
