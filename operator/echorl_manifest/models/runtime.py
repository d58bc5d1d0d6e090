"""The rest of spec: weights on the wire, checkpoints, resume, storage, failures, monitors."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.base import ApiModel, Duration, HttpUrl, ObjectName, Quantity, Text


class WeightTransfer(ApiModel):
    """How new weights reach the engines."""

    mode: Literal["http", "disk", "nccl", "auto"] = "http"
    """``http``: engines pull from trainer ranks; ``disk``: through the run's volume; ``nccl``: these broadcast to
    them; ``auto``: http or nccl."""
    delta: Literal["auto", "never"] = "auto"
    """``auto``: engines that hold the version before fetch what has changed, where that is at most half of the bytes;
    ``never``, and for adapters: the whole."""


class MemoryCopies(ApiModel):
    """Copies of the trainer's state."""

    every_steps: Annotated[int, Field(ge=1)] = 1
    """Steps between two."""
    limit: Quantity
    """Bytes of two of each rank's state, with ``mirror`` of five."""
    mirror: bool = False
    """Whether each pod's newest copies are also held by a neighbour, so that the others stay when one is lost; needs
    two replicas or more. No meaning on one machine."""


class Checkpoint(ApiModel):
    """When checkpoints are saved, and which are kept. The last step is always saved."""

    interval: Annotated[int, Field(ge=1)] = 25
    """Steps between two checkpoints."""
    keep_last: Annotated[int, Field(ge=1)] = 2
    """Newest ones that stay."""
    keep_every: Annotated[int, Field(ge=1)] | None = None
    """Steps that are multiples of this stay for ever; a multiple of ``interval``."""
    async_save: bool = True
    """Whether training goes on while a checkpoint is written, from a copy in host memory (``echorl plan``)."""
    weights_only_every: Annotated[int, Field(ge=1)] | None = None
    """Steps between two exports of the weights alone, to ``exports/`` of the run's folder."""
    weights_only_keep_last: Annotated[int, Field(ge=1)] = 5
    """Newest of these that stay. Only with ``weightsOnlyEvery``."""
    memory: MemoryCopies | None = None
    """In its pods' memory, for restarts of processes in place."""


class Resume(ApiModel):
    """What the run's checkpoints mean for its start."""

    policy: Literal["Auto", "Never", "FromStep"] = "Auto"
    """Where the run starts.

    ``Auto``: at the newest committed checkpoint, if any; ``Never``: at step 0; ``FromStep``: at ``step``, once.
    In a cluster ``Never`` is about what others left: a run that was prepared once goes on from its own checkpoints.
    ``FromStep`` with ``step: 0`` begins it anew.
    """
    step: Annotated[int, Field(ge=0)] | None = None
    """Only for ``FromStep``: a committed checkpoint's step."""
    on_existing: Literal["Refuse", "Archive"] = "Refuse"
    """Only for ``Never``: whether another run's folder, or committed checkpoints that are there, stop the run or are
    moved aside."""


class Code(ApiModel):
    """The user's own code, put on PYTHONPATH of orchestrator and trainer."""

    config_map: ObjectName | None = None
    """A ConfigMap with Python files."""
    path: Text | None = None
    """A folder."""


class PullSecret(ApiModel):
    """A Secret with registry credentials."""

    name: ObjectName
    """Its name."""


class Storage(ApiModel):
    """The run's volume. No meaning on one machine."""

    claim_name: ObjectName | None = None
    """An existing claim; absent: one is made."""
    size: Quantity | None = None
    """Of the claim that is made. Default: 500Gi."""
    storage_class_name: ObjectName | None = None
    """Of the claim that is made."""
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = "ReadWriteMany"
    """``ReadWriteOnce`` only with one trainer replica, which then shares a node with the orchestrator."""
    retain: bool = True
    """Whether the claim that was made outlives the run."""


class FailureRule(ApiModel):
    """What certain exit codes of a role's processes mean.

    Not of what was done to them: eviction, deletion, failed health checks. Code 0 of trainer and orchestrator is the
    end of their work.
    """

    role: Literal["trainer", "inference", "orchestrator"]
    """Whose processes."""
    exit_codes: Annotated[
        tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(strict=False, min_length=1, max_length=64)
    ]
    """Of a process that a signal ended, out of memory included: 128 + the signal."""
    action: Literal["Fail", "Restart", "Ignore"]
    """What follows.

    ``Fail``: the run fails; ``Restart``: what follows a crash, also after codes that otherwise fail the run;
    ``Ignore``: the same, and it does not count against ``maxRestarts``.
    """


class FailurePolicy(ApiModel):
    """How often and how fast roles are restarted."""

    max_restarts: Annotated[int, Field(ge=0)] = 5
    """Restarts of each role before the run fails; the gang counts as trainer, engines on one machine alone."""
    backoff_seconds: Annotated[float, Field(ge=0, le=86400)] = 10.0
    """Wait before the first restart of a role; doubled at each further one, 300 s at the most."""
    reset_after_steps: Annotated[int, Field(ge=1)] = 20
    """Steps without a failure after which restarts count from 0 again."""
    rules: Annotated[tuple[FailureRule, ...], Field(strict=False, max_length=64)] = ()
    """What certain exit codes mean; first match wins."""
    force_delete_on_node_loss: bool = False
    """Whether pods that hang on a lost node, engines too, are removed by force. No meaning on one machine."""


class StallPolicy(ApiModel):
    """When a run that makes no step counts as hung."""

    no_step_for: Duration = "30m"
    """Longest time without a step while the run is Running.

    A rank whose loop makes no progress for this long, or 10 times its median step, is unhealthy; a rank or an
    orchestrator that is so for this long is ended.
    """
    action: Literal["Restart", "Fail", "Ignore"] = "Restart"
    """What follows.

    ``Restart``: a new attempt, within ``maxRestarts``; ``Fail``: the run fails; ``Ignore``: only the
    condition ``Stalled`` tells.
    """


class TokenExport(ApiModel):
    """What a step trained, token by token, under ``tokens/`` for ``echorl tokens``."""

    enabled: bool = False
    """Whether there is one. A rank writes at most 200,000 tokens a step."""
    every_steps: Annotated[int, Field(ge=1)] = 50
    """Steps between two exports; the last step is exported too."""


class Wandb(ApiModel):
    """Weights & Biases: one run for all roles and attempts, under the run's uid."""

    project: Text | None = None
    """Project that the run appears in; absent: off."""
    entity: Text | None = None
    """Team or user that the project belongs to. Default: the API key's own."""
    base_url: HttpUrl | None = None
    """Of a server of your own."""
    mode: Literal["online", "offline"] = "online"
    """``offline`` writes to ``wandb/`` of the run's folder alone, for ``wandb sync``."""
    secret_name: ObjectName | None = None
    """Secret whose key ``token`` is the API key. On one machine: the variable ``WANDB_API_KEY``."""


class TensorBoard(ApiModel):
    """TensorBoard's event files."""

    enabled: bool = False
    """Write them to ``tensorboard/`` of the run's folder."""


class Monitors(ApiModel):
    """Where metrics go besides ``/metrics`` and records. One that fails never stops or slows the run."""

    wandb: Wandb = Wandb()
    """Weights & Biases."""
    tensorboard: TensorBoard = TensorBoard()
    """Event files."""


class Record(ApiModel):
    """What a run keeps beyond its usual records."""

    enabled: bool = False
    """Keep every batch under ``record/``, so that it can be trained on again without engines."""
    episodes: bool = False
    """Write every train and eval episode, messages included, to ``records/`` as Parquet: a file a step and an eval.

    Nothing ever removes records: they may outgrow the volume. Without it ``episodes.jsonl`` has a few whole ones.
    """
