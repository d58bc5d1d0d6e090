import json

import pytest

from echorl_operator.kube import errors


def _status(message: str = "no", reason: str = "", **details: object) -> bytes:
    return json.dumps({"kind": "Status", "message": message, "reason": reason, "details": details}).encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, _status(), errors.BadRequest),
        (401, _status(), errors.Unauthorized),
        (403, _status('pods is forbidden: User "a" cannot list resource "pods"'), errors.Forbidden),
        (403, _status('pods "x" is forbidden: exceeded quota: q, requested: pods=1'), errors.Refused),
        (403, _status('pods "x" is forbidden: violates PodSecurity "restricted:latest"'), errors.Refused),
        (403, b"", errors.Forbidden),
        (404, _status(), errors.NotFound),
        (409, _status(reason="Conflict"), errors.Conflict),
        (409, _status(reason="AlreadyExists"), errors.AlreadyExists),
        (410, _status(), errors.Gone),
        (413, _status(), errors.BadRequest),
        (422, _status(reason="Invalid"), errors.Invalid),
        (422, _status("x is forbidden: ValidatingAdmissionPolicy 'p' denied request: no"), errors.Refused),
        (429, _status(), errors.TooManyRequests),
        (500, _status(), errors.Unavailable),
        (503, b"<html>bad gateway</html>", errors.Unavailable),
    ],
)
def test_a_reply_becomes_one_kind_of_error(status: int, body: bytes, kind: type[errors.ApiError]) -> None:
    error = errors.from_reply("apply /x", status, body)
    assert type(error) is kind
    assert error.status == status
    assert str(error).startswith(f"apply /x: {status}")


def test_an_invalid_object_names_its_fields() -> None:
    body = _status("bad", "Invalid", causes=[{"field": "spec.replicas", "message": "must be positive", "reason": "R"}])
    error = errors.from_reply("apply /x", 422, body)
    assert error.causes == (errors.Cause("spec.replicas", "must be positive", "R"),)


@pytest.mark.parametrize(("header", "expected"), [("7", 7.0), (None, 3.0), ("soon", 3.0)])
def test_the_header_says_when_to_come_again_before_the_body_does(header: str | None, expected: float) -> None:
    error = errors.from_reply("get /x", 429, _status(retryAfterSeconds=3), header)
    assert error.retry_after_s == expected


def test_a_read_is_never_refused_by_admission() -> None:
    assert type(errors.from_reply("list /x", 403, _status("no reason that we know"))) is errors.Forbidden


def test_a_terminating_namespace_is_recognised() -> None:
    body = _status("x is forbidden: unable to create new content", causes=[{"reason": "NamespaceTerminating"}])
    error = errors.from_reply("create /x", 403, body)
    assert isinstance(error, errors.Refused)
    assert error.namespace_terminating


@pytest.mark.parametrize(
    "body", [b"bad gateway", b'{"message": "bad gateway \xfc"}', b'{"x": "bad gateway", "y": ' + b"[" * 5000]
)
def test_a_body_that_is_no_status_is_quoted(body: bytes) -> None:
    assert "bad gateway" in str(errors.from_reply("get /x", 502, body))


@pytest.mark.parametrize(
    ("message", "differs"),
    [
        ("Precondition failed: UID in precondition: a, UID in object meta: b", True),
        ('on ConfigMap "x": the UID in the precondition (a) does not match the UID in record (b)', True),
        ("the object has been modified; please apply your changes to the latest version", False),
    ],
)
def test_a_conflict_says_whether_the_uid_differs(message: str, differs: bool) -> None:
    error = errors.from_reply("delete /x", 409, _status(message, "Conflict"))
    assert isinstance(error, errors.Conflict)
    assert error.uid_differs is differs
