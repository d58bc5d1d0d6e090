"""status: what the operator writes. Source of the CRD; a field that is not here is pruned by the API server.

The bounds are the API server's too: text that may grow is cut to them before it is written.
"""

from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.base import ApiModel, Time

MAX_CONDITIONS = 32
MAX_TIMELINE = 64
MAX_MESSAGE = 4096
"""Characters of the message of a run or a condition."""
MAX_REASON = 256
"""Characters of a reason: one CamelCase word."""

PhaseName = Literal["Pending", "Preparing", "Starting", "Running", "Restarting", "Suspended", "Succeeded", "Failed"]

Message = Annotated[str, Field(max_length=MAX_MESSAGE)]
Reason = Annotated[str, Field(max_length=MAX_REASON)]
MAX_SHORT = 1024
MAX_REWARD = 32
ShortText = Annotated[str, Field(max_length=MAX_SHORT)]
Count = Annotated[int, Field(ge=0)]


class Condition(ApiModel):
    """One aspect of the run's state, as in every Kubernetes object."""

    type: Annotated[str, Field(min_length=1, max_length=64)]
    """Ready, Progressing, TrainerReady, InferenceReady, OrchestratorReady, CheckpointCommitted, OffPolicyBounded,
    RewardSignal, EpisodeInfrastructure, GangWhole, Failed, Blocked, InvalidSpec, NodeLost or Stalled:
    docs/operator/conditions.md."""
    status: Literal["True", "False", "Unknown"]
    """Whether it is so."""
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON)]
    """Why, in one CamelCase word."""
    message: Message = ""
    """Why, in one sentence."""
    last_transition_time: Time
    """When ``status`` changed last."""
    observed_generation: Count | None = None
    """Generation of the run that this was seen at."""


class ServedVersions(ApiModel):
    """Policy versions that engines serve."""

    min: Count
    """Lowest."""
    max: Count
    """Highest."""


class PolicyStatus(ApiModel):
    """Versions of the policy: version v is the weights after step v."""

    trained: Count | None = None
    """Newest version that the trainer has made."""
    served: ServedVersions | None = None
    """Versions that engines serve; absent: none does."""
    staleness_max: Count | None = None
    """Versions that the oldest sample of the last batch lay behind."""


class CheckpointStatus(ApiModel):
    """The newest committed checkpoint."""

    step: Count
    """Its step."""
    committed_at: Time
    """When its manifest was written."""
    size_bytes: Count
    """Bytes of all its parts."""
    path: ShortText | None = None
    """Its folder, on the run's volume."""


class RoleReadiness(ApiModel):
    """Pods of one role."""

    ready: Count
    """Pods that are ready."""
    desired: Count
    """Pods that there should be."""


class RolesStatus(ApiModel):
    """Pods by role."""

    trainer: RoleReadiness | None = None
    """The gang of trainer ranks."""
    inference: RoleReadiness | None = None
    """The engines."""
    orchestrator: RoleReadiness | None = None
    """The role between them."""
    environment: RoleReadiness | None = None
    """Servers of environments that are images."""


class InferenceStatus(ApiModel):
    """What the scale subresource shows."""

    replicas: Count
    """Engine pods that there are."""
    selector: ShortText
    """Label selector of these, for autoscalers."""
    autoscale: ShortText | None = None
    """Why there are to be that many."""


class RestartsByRole(ApiModel):
    """Restarts by the role that caused them."""

    trainer: Count = 0
    """Of the gang as a whole."""
    inference: Count = 0
    """Of one engine alone."""
    orchestrator: Count = 0
    """Of the orchestrator alone."""


class WaitingSandboxes(ApiModel):
    """Sandboxes that wait for the same."""

    reason: Reason
    """Why, in one CamelCase word: docs/operator/conditions.md."""
    count: Count
    """How many."""
    message: ShortText
    """What is said of the one that waits longest: by the scheduler, the kubelet, the quota."""


MAX_WAITING = 16


class SandboxesStatus(ApiModel):
    """Sandboxes in pods."""

    alive: Count
    """That are ready."""
    starting: Count
    """That have nothing in their way."""
    warm: Count | None = None
    """That are ready and that nobody has yet; absent: the run keeps none."""
    claimed: Count | None = None
    """Of ``alive``: that were warm; absent: the run keeps none."""
    waiting: Annotated[tuple[WaitingSandboxes, ...], Field(strict=False, max_length=MAX_WAITING)] = ()
    """That something keeps, by reason."""
    lost: Annotated[dict[str, Count], Field(max_length=16)] | None = None
    """That could not be made or were lost since the attempt's orchestrator began, by class: docs/sandboxes.md."""


class ModelStatus(ApiModel):
    """The model as it was resolved."""

    revision: ShortText
    """Commit that ``spec.model.revision`` stood for when the first attempt was prepared."""


class TimelineEntry(ApiModel):
    """One phase that the run went through."""

    phase: PhaseName
    """Which."""
    since: Time
    """When it began."""
    attempt: Count
    """In which attempt; 0: before the first."""
    reason: Reason
    """Why it began."""


class Control(ApiModel):
    """What the operator must know of its earlier passes."""

    rendered_generation: Count | None = None
    """Generation of the spec that the attempt rests on; 0: nobody knows."""
    active_since: Time | None = None
    """Since when the run is neither suspended nor ended; ``activeDeadlineSeconds`` counts from it."""
    prepared_attempt: Count | None = None
    """Attempt that prepare has finished for."""
    failed_preparations: Count | None = None
    """Prepare pods of the current attempt that failed."""
    admitted_attempt: Count | None = None
    """Attempt whose gang was let through to the scheduler."""
    admitted_pods: Annotated[str, Field(max_length=64)] | None = None
    """Digest of that gang's pods."""
    not_before: Time | None = None
    """Back-off: the attempt is not prepared earlier, nor its orchestrator started again alone."""
    stop_asked_at: Time | None = None
    """When the orchestrator was first asked for a last checkpoint and the end."""
    restarts_used: RestartsByRole | None = None
    """Restarts since the last reset, by role; they count against ``failurePolicy.maxRestarts``."""
    restarts_in_place: Count | None = None
    """Those of this attempt that are counted."""
    replacements: Count | None = None
    """Restarts in place of this attempt, with pods in the place of lost ones, that are told."""
    replacing: Annotated[dict[str, Count], Field(max_length=4096)] | None = None
    """When pods of the gang were lost that others are to take the place of, in seconds since the epoch, by index."""
    replaced_at: Annotated[int, Field(ge=0)] | None = None
    """When these were let through, in seconds since the epoch; until the gang has gone on."""
    reached_step: Count | None = None
    """Step at the last restart; ``failurePolicy.resetAfterSteps`` counts from it."""
    counted_pod: Annotated[str, Field(max_length=64)] | None = None
    """Uid of the pod whose end was counted last."""
    engine_restarts: Annotated[dict[str, Count], Field(max_length=4096)] | None = None
    """Restarts that are counted already, by pod of an engine; pods without any are left out."""
    judged_ends: Annotated[dict[str, Count], Field(max_length=4096)] | None = None
    """Ends of engines that were looked at, by pod."""
    failure: Reason | None = None
    """Why the run failed, in one word."""
    stepped_attempt: Count | None = None
    """Newest attempt that has made a step of its own."""
    noticed_attempt: Count | None = None
    """Newest attempt whose gang was given notice."""
    lost_checkpoint: ShortText | None = None
    """Which checkpoint, newer than the resume step, prepare found damaged or gone; until a newer one is committed."""
    autoscale: Annotated[dict[str, Count], Field(max_length=16)] | None = None
    """What autoscaling has decided."""
    gang: Annotated[dict[str, Count], Field(max_length=8)] | None = None
    """An elastic gang's size."""


class RunStatus(ApiModel):
    """What the operator knows of the run. Written by it alone."""

    phase: PhaseName | None = None
    """Where the run stands."""
    message: Message | None = None
    """One sentence: what the run is doing or waiting for, and why."""
    conditions: Annotated[
        tuple[Condition, ...],
        Field(strict=False, max_length=MAX_CONDITIONS, json_schema_extra={"x-list-map-key": "type"}),
    ] = ()
    """Its state by aspect."""
    observed_generation: Count | None = None
    """Generation of the spec that this status is of: it was carried out, or refused (``InvalidSpec``), or waits for the
    run to go on (suspended, ended)."""
    attempt: Count | None = None
    """Number of the current attempt; it fences what older attempts still do. 0: none has begun."""
    revision: Annotated[str, Field(max_length=253)] | None = None
    """ControllerRevision that the attempt's pods are made from."""
    resume_step: Count | None = None
    """Step that the current attempt began at; 0: from the start."""
    step: Count | None = None
    """Steps that are done."""
    reward: Annotated[str, Field(max_length=MAX_REWARD)] | None = None
    """Mean reward of the last step's episodes, as a decimal number."""
    policy: PolicyStatus | None = None
    """Versions of the policy."""
    checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint."""
    restarts: Count | None = None
    """All restarts so far."""
    restarts_by_role: RestartsByRole | None = None
    """All restarts so far, by role."""
    notices: Count | None = None
    """Pods that others took away (drains, preemption, evictions); these count against no limit."""
    last_notice: ShortText | None = None
    """The newest of these, in one sentence."""
    roles: RolesStatus | None = None
    """Pods by role."""
    inference: InferenceStatus | None = None
    """What the scale subresource shows."""
    sandboxes: SandboxesStatus | None = None
    """Sandboxes in pods; absent: the run asks for none."""
    goodput: Annotated[dict[str, int], Field(max_length=64)] | None = None
    """What GPU time was for: seconds as ``trainer/STATE`` and ``inference/STATE``, sampled tokens that will never be
    trained as ``tokens/CAUSE``, ``usefulPercent``. See docs/goodput.md."""
    model: ModelStatus | None = None
    """The model as it was resolved."""
    start_time: Time | None = None
    """When the operator saw the run first."""
    completion_time: Time | None = None
    """When the run succeeded or failed; ``ttlSecondsAfterFinished`` counts from it."""
    timeline: Annotated[tuple[TimelineEntry, ...], Field(strict=False, max_length=MAX_TIMELINE)] = ()
    """Phases that it went through, oldest first; the oldest fall away."""
    control: Control | None = None
    """What the operator must know of its earlier passes."""
