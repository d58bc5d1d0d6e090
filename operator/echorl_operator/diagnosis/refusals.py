"""Why the API server does not take an object: quota, Pod Security, policies, webhooks, rights. Reason and words."""

import re
from dataclasses import dataclass

_CALL = re.compile(r"^(?:create|apply|patch|update|delete|get|list) /\S+: (?:\d+|no reply) ?\w*: ")
_OF_SET = re.compile(r"^create Pod \S+ in StatefulSet \S+ failed error: ", re.IGNORECASE)
_OF_REPLICA_SET = re.compile(r"^Error creating: ")
_FORBIDDEN = re.compile(r'^(?P<kind>[\w.]+) "(?P<name>[^"]*)" is forbidden: ')
_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>[^,]+), requested: (?P<wanted>.+), used: (?P<used>.+), limited: (?P<limit>.+)"
)
_PLURALS = {
    "pods": "Pod",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "services": "Service",
    "configmaps": "ConfigMap",
    "secrets": "Secret",
    "serviceaccounts": "ServiceAccount",
}
_CAUSES = (
    (re.compile(r"exceeded quota|failed quota"), "QuotaExceeded"),
    (re.compile(r"violates PodSecurity"), "PodSecurityRefused"),
    (re.compile(r"error looking up service account|serviceaccount .* not found"), "ServiceAccountMissing"),
    (re.compile(r"ValidatingAdmissionPolicy"), "PolicyRefused"),
    (re.compile(r"failed calling webhook"), "WebhookFailed"),
    (re.compile(r"admission webhook .* denied"), "WebhookRefused"),
    (re.compile(r"is being terminated"), "NamespaceTerminating"),
    (re.compile(r'User "[^"]*" cannot '), "MissingRight"),
    (re.compile(r"(maximum|minimum) \S+ usage per|max limit to request ratio per"), "LimitRangeExceeded"),
    (re.compile(r"is invalid: "), "Invalid"),
)
_NODES_OWN = (
    "network.host and network.rdma need a namespace with the label pod-security.kubernetes.io/enforce: privileged"
)


@dataclass(frozen=True)
class Refusal:
    """Read from an error of the API server, or from a controller's event that quotes one."""

    reason: str
    """CamelCase, of a small fixed set."""
    object: str
    """``Pod one-prepare-1``; empty if it is not named."""
    words: str


def read(message: str) -> Refusal:
    """What a refusal says, without the names that change from try to try."""
    text = _CALL.sub("", message.strip())
    text = _OF_REPLICA_SET.sub("", _OF_SET.sub("", text))
    forbidden = _FORBIDDEN.match(text)
    named = ""
    if forbidden is not None:
        text = text[forbidden.end() :]
        named = f"{_PLURALS.get(forbidden['kind'], forbidden['kind'])} {forbidden['name']}"
    reason = next((word for form, word in _CAUSES if form.search(text)), "Refused")
    return Refusal(reason, named, _words(text) + _advice(reason, text))


def _advice(reason: str, text: str) -> str:
    """What a user may not read out of the words: that a level in between would not do."""
    asked = reason == "PodSecurityRefused" and re.search(r"hostNetwork=true|\bIPC_LOCK\b", text)
    return f"; {_NODES_OWN}" if asked else ""


def _words(text: str) -> str:
    quota = _QUOTA.fullmatch(text)
    if quota is None:
        return text
    used, limit = _amounts(quota["used"]), _amounts(quota["limit"])
    parts = [
        f"{amount} {resource} wanted, {used.get(resource, '?')} used of {limit.get(resource, '?')}"
        for resource, amount in _amounts(quota["wanted"]).items()
    ]
    return f"exceeded quota: {quota['quota']}: {'; '.join(parts)}"


def _amounts(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {resource.strip(): amount.strip() for resource, _, amount in pairs}
