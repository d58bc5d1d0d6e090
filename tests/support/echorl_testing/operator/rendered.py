"""Runs rendered for a cluster, with everything that a test may want fixed."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from echorl_cli.yaml_text import parse_yaml
from echorl_manifest import EchoRLRun, load
from echorl_operator.children import (
    Rendering,
    common,
    inference_deployment,
    orchestrator_pod,
    prepare_pod,
    render,
    token_secret,
    trainer_set,
)
from echorl_operator.settings import Settings

_REPOSITORY = Path(__file__).parents[4]
SETTINGS = Settings(operator_version="0.1.0")
UID = "5f1c0a52-7c0e-4f4b-9d1a-2f1f9f0f8f11"
NAMESPACE = "research"
TOKEN = "a-token-of-tests"
MANIFESTS = {
    "quickstart": _REPOSITORY / "examples/quickstart.yaml",
    "games": _REPOSITORY / "tests/golden/children/manifests/games.yaml",
    "two-pods": _REPOSITORY / "tests/golden/children/manifests/two-pods.yaml",
}


def manifest(name: str) -> dict[str, Any]:
    """One of the manifests whose children are golden files."""
    document: dict[str, Any] = parse_yaml(MANIFESTS[name].read_text())
    return copy.deepcopy(document)


def rendered(document: dict[str, Any], *, settings: Settings = SETTINGS, uid: str = UID) -> Rendering:
    """The rendering of a parsed manifest, generation 1."""
    run: EchoRLRun = load(document)
    return render(run, uid=uid, namespace=NAMESPACE, generation=1, settings=settings)


def children(rendering: Rendering, attempt: int = 1) -> list[dict[str, Any]]:
    """All children of an attempt, in the order to apply them."""
    inference = rendering.spec["inference"]["replicas"]
    return [
        *common(rendering),
        token_secret(rendering, TOKEN),
        prepare_pod(rendering, attempt),
        trainer_set(rendering, attempt, rendering.spec["trainer"]["replicas"]),
        inference_deployment(rendering, inference),
        orchestrator_pod(rendering, attempt),
    ]


def pod_specs(rendering: Rendering) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spec of each role's pods, by role."""
    for body in children(rendering):
        spec = body.get("spec", {})
        if body["kind"] == "Pod":
            yield body["metadata"]["labels"]["echorl.dev/role"], spec
        elif "template" in spec:
            yield spec["template"]["metadata"]["labels"]["echorl.dev/role"], spec["template"]["spec"]
