"""What a run is to look like, whatever its attempt: plain JSON, so that it can be frozen and read back as it was."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from echorl_core.config import OrchestratorConfig
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_operator.children.arrows import Arrow
from echorl_operator.children.target import Object


@dataclass(frozen=True)
class Rendering:
    """The children of one run, at one generation, by one version of the operator. Treat its parts as read-only."""

    run: str
    uid: str
    namespace: str
    generation: int
    """The run's generation when it was rendered."""
    operator_version: str
    config_hash: str
    """Hash of the role configs."""
    spec_hash: str
    """Hash of the spec with all defaults, so that one that appears in the CRD later changes nothing."""
    spec: Object
    """The spec as validated, with all defaults."""
    common: list[Object]
    """Complete, in the order to apply them."""
    token: Object
    """The Secret without its data."""
    trainer: Object
    """The StatefulSet without attempt and replicas."""
    inference: Object
    """The Deployment without replicas."""
    orchestrator: Object
    """The pod without attempt."""
    prepare: Object
    """The pod without attempt and resume policy."""
    arrows: list[Object]

    def to_json(self) -> Object:
        """Plain JSON; ``from_json`` reads it. Its parts are the rendering's own."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Rendering":
        """What ``to_json`` gave; its parts are taken over, not copied.

        Raises:
            ValueError: names the fields that are missing or unknown.
        """
        field_names = {field.name for field in fields(cls)}
        if field_names != body.keys():
            wrong = ", ".join(sorted(field_names ^ body.keys()))
            raise ValueError(f"rendering: missing or unknown fields: {wrong}")
        return cls(**body)


def arrows(rendering: Rendering) -> list[Arrow]:
    """The connections that the run's NetworkPolicies allow."""
    return [Arrow.from_json(body) for body in rendering.arrows]


def spec_of(rendering: Rendering) -> EchoRLRunSpec:
    """The spec that it was rendered from.

    Raises:
        pydantic.ValidationError: it was frozen by an operator whose rules accept what today's refuse.
    """
    return EchoRLRunSpec.model_validate(rendering.spec)


def orchestrator_config(rendering: Rendering) -> OrchestratorConfig:
    """The orchestrator's config, to be compared with a later one.

    Raises:
        pydantic.ValidationError: it was frozen by an operator of another format.
    """
    return OrchestratorConfig.model_validate_json(config_text(rendering, "orchestrator.json"))


def config_text(rendering: Rendering, file: str) -> str:
    """A role config as its pods read it, by file name: ``orchestrator.json``."""
    texts = (body["data"][file] for body in rendering.common if body["kind"] == "ConfigMap" and file in body["data"])
    text: str = next(texts)
    return text
