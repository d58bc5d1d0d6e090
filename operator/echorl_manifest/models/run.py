"""EchoRLRun: the document that a user writes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from echorl_manifest.models.algorithm import Algorithm
from echorl_manifest.models.base import Annotations, ApiModel, DnsLabel, JsonObject, Labels, RunName
from echorl_manifest.models.environments import Environments
from echorl_manifest.models.inference import Inference, Orchestrator
from echorl_manifest.models.model import ModelSpec
from echorl_manifest.models.runtime import (
    Checkpoint,
    Code,
    FailurePolicy,
    Monitors,
    PullSecret,
    Record,
    Resume,
    StallPolicy,
    Storage,
    TokenExport,
    WeightTransfer,
)
from echorl_manifest.models.sandboxes import Sandboxes
from echorl_manifest.models.trainer import Trainer


class Metadata(ApiModel):
    """Kubernetes metadata. What the cluster adds is accepted and ignored."""

    name: RunName
    """The run's name."""
    namespace: DnsLabel | None = None
    """Namespace in a cluster."""
    labels: Labels = {}
    """Labels in a cluster."""
    annotations: Annotations = {}
    """Annotations in a cluster."""
    creation_timestamp: Any = None
    """Written by the cluster."""
    deletion_grace_period_seconds: Any = None
    """Written by the cluster."""
    deletion_timestamp: Any = None
    """Written by the cluster."""
    finalizers: Any = None
    """Written by the cluster."""
    generation: Any = None
    """Written by the cluster."""
    managed_fields: Any = None
    """Written by the cluster."""
    owner_references: Any = None
    """Written by the cluster."""
    resource_version: Any = None
    """Written by the cluster."""
    uid: Any = None
    """Written by the cluster."""


class EchoRLRunSpec(ApiModel):
    """What is trained, on what, and how."""

    model: ModelSpec
    """The model under training."""
    max_steps: Annotated[int, Field(ge=0)] = 500
    """Optimizer steps of the run. 0: play the evals with the start weights and end."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 42
    """Of task order and of every random choice of the run's own."""
    algorithm: Algorithm = Algorithm()
    """What is optimised, and on which episodes."""
    environments: Environments = Environments()
    """What the model plays."""
    sandboxes: Sandboxes | None = None
    """What agents and graders run in; absent: no environment may ask for any."""
    trainer: Trainer = Trainer()
    """The ranks that update the weights."""
    inference: Inference = Inference()
    """The engines."""
    orchestrator: Orchestrator = Orchestrator()
    """The role between them."""
    weight_transfer: WeightTransfer = WeightTransfer()
    """How new weights reach the engines."""
    checkpoint: Checkpoint = Checkpoint()
    """When checkpoints are saved, and which are kept."""
    resume: Resume = Resume()
    """What the run's checkpoints mean for its start."""
    record: Record = Record()
    """Copies of sealed batches."""
    code: Code = Code()
    """The user's own code."""
    image_pull_secrets: Annotated[tuple[PullSecret, ...], Field(strict=False, max_length=16)] = ()
    """Registry credentials. No meaning on one machine."""
    egress: Annotated[tuple[JsonObject, ...], Field(strict=False, max_length=64)] = ()
    """NetworkPolicy egress rules beyond what the run itself needs. No meaning on one machine."""
    storage: Storage = Storage()
    """The run's volume. No meaning on one machine."""
    suspend: bool = False
    """true: keep the run, without pods."""
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    """Time that the run may be active, then it fails; counted anew when it goes on after ``suspend`` or its end. No
    meaning on one machine."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0)] | None = None
    """Time after its end at which the object is deleted. No meaning on one machine."""
    failure_policy: FailurePolicy = FailurePolicy()
    """How often and how fast the gang is restarted."""
    stall_policy: StallPolicy = StallPolicy()
    """When a run that makes no step counts as hung."""
    token_export: TokenExport = TokenExport()
    """Export of tokens with their provenance."""
    monitors: Monitors = Monitors()
    """Where metrics go besides ``/metrics``."""


class EchoRLRun(ApiModel):
    """One run: a model, its environments and what may be spent on it."""

    api_version: Literal["echorl.dev/v1alpha1"]
    """Version of this format."""
    kind: Literal["EchoRLRun"]
    """Kind of this document."""
    metadata: Metadata
    """Name and labels."""
    spec: EchoRLRunSpec
    """What is trained, on what, and how."""
    status: Any = None
    """Written by the operator; ignored."""
