"""Namespaces that accept pods."""

from collections.abc import Mapping

from echorl_testing.cluster.api import Api
from echorl_testing.cluster.processes import wait_for

_ACCOUNT_DEADLINE_S = 120.0
"""Controllers wait up to half a minute before they ask an API server again that was down."""


def make_namespace(api: Api, name: str, labels: Mapping[str, str] | None = None) -> None:
    """Return once pods can be made in it."""
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for(f"{account} exists", lambda: api.find(account) is not None, seconds=_ACCOUNT_DEADLINE_S)
