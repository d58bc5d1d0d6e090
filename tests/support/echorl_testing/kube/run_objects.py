"""EchoRLRuns on a real API server: the CRD installed, objects tried without being stored, refusals by their fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from echorl_operator import names
from echorl_testing.cluster.api import Api, ApiError, granted
from echorl_testing.cluster.processes import wait_for

CRD_FILE = Path(__file__).parents[4] / "crds" / "echorlruns.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_DEADLINE_S = 120.0
STRICT = {"fieldValidation": "Strict"}


def install_crd(api: Api) -> dict[str, Any]:
    """Apply the CRD and wait until its objects can be read; returns it as the API server holds it."""
    crd = yaml.safe_load(CRD_FILE.read_text())
    path = f"{CRDS}/{crd['metadata']['name']}"
    api.apply(path, crd)
    wait_until_served(api)
    held: dict[str, Any] = api.get(path)
    return held


def wait_until_served(api: Api) -> None:
    """Return once EchoRLRuns can be read: a while after their CRD is there, or the API server is back."""
    runs = f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}"
    wait_for("EchoRLRuns are served", lambda: granted(lambda: api.get(runs)), seconds=_DEADLINE_S)


@dataclass(frozen=True)
class Cause:
    """One error of a refusal."""

    field: str
    message: str


class Runs:
    """EchoRLRuns of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        self.path = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}"
        self._namespace = namespace

    def tried(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A run as it would be stored; nothing is.

        Raises:
            ApiError: refused.
        """
        query = {**STRICT, "dryRun": "All"}
        tried: dict[str, Any] = self._api.request("POST", self.path, self._own(document), query=query)
        return tried

    def created(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Store a run."""
        created: dict[str, Any] = self._api.request("POST", self.path, self._own(document), query=STRICT)
        return created

    def replaced(self, document: Mapping[str, Any], *, dry_run: bool = True) -> dict[str, Any]:
        """A stored run with the spec of ``document``; stored only without ``dry_run``."""
        name = document["metadata"]["name"]
        body = {**self._api.get(f"{self.path}/{name}"), "spec": document["spec"]}
        query = {**STRICT, "dryRun": "All"} if dry_run else STRICT
        replaced: dict[str, Any] = self._api.request("PUT", f"{self.path}/{name}", body, query=query)
        return replaced

    def _own(self, document: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {key: value for key, value in document["metadata"].items() if key not in {"uid", "namespace"}}
        return {**document, "metadata": {**metadata, "namespace": self._namespace}}


def causes(error: ApiError) -> list[Cause]:
    """What a refusal is due to, field by field."""
    found = error.status.get("details", {}).get("causes", [])
    return [Cause(one.get("field", ""), one.get("message", "")) for one in found]
