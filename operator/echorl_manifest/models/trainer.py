"""spec.trainer: the gang of ranks that updates the weights."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.base import Accepts, ApiModel, PodTemplate
from echorl_manifest.models.network import Network

Shards = Annotated[Literal["auto"] | Annotated[int, Field(ge=1)], Accepts("auto, or a whole number of at least 1")]


class Parallel(ApiModel):
    """How ranks divide the work; fsdp x replicate x context = ranks."""

    fsdp: Shards = "auto"
    """Ranks with batches of their own that share one copy of the model. ``auto``: what the others leave."""
    replicate: Annotated[int, Field(ge=1)] = 1
    """Copies of the sharded model."""
    context: Annotated[int, Field(ge=1)] = 1
    """Ranks that share one pack of tokens. Divides the model's attention heads."""
    expert: Annotated[int, Field(ge=1)] = 1
    """Ranks that experts are split over. Divides their number."""


class Optimizer(ApiModel):
    """Optimizer and learning-rate schedule."""

    type: Literal["adamw", "muon", "signSgd", "sgd"] = "adamw"
    """Update rule. ``muon``: for the matrices of the transformer layers; all else is updated by ``adamw``."""
    lr: Annotated[float, Field(gt=0)] = 1.0e-6
    """Learning rate after warm-up."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Weight decay of all but norms and biases; decoupled, but for ``sgd``."""
    betas: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]],
        Field(strict=False),
        Accepts("a list of 2 numbers, each at least 0 and below 1"),
    ] = (0.9, 0.95)
    """Decay of the first and second moment of ``adamw``, also where it updates what ``muon`` leaves."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this global norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after warm-up, until ``maxSteps``."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises linearly from 0."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of ``lr`` that ``linear`` and ``cosine`` end at."""
    state_dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of the moments of ``adamw`` and ``muon`` between steps. ``int8``: codes of 8 bits, a scale per 256."""
    cpu_offload: bool = False
    """Whether ``adamw`` and ``muon`` keep their moments in host memory between steps."""


class Profile(ApiModel):
    """Traces of whole steps, to be opened in Perfetto."""

    steps: Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=16)] = []
    """Steps that every rank traces, into ``profiles/`` of the run's directory. Such a step takes seconds longer."""


class Elastic(ApiModel):
    """In a cluster."""

    min_replicas: Annotated[int, Field(ge=1, le=4096)]
    """Fewest pods."""
    after_seconds: Annotated[int, Field(ge=1, le=86400)] = 300
    """How long a pod waits for a node before."""


class Trainer(PodTemplate):
    """The gang of trainer ranks: ``replicas`` x max(1, ``gpusPerReplica``)."""

    replicas: Annotated[int, Field(ge=1, le=4096)] = 1
    """Pods (on one machine: groups of processes) of the gang."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs, and so ranks, of each. 0: one rank on the CPU."""
    elastic: Elastic | None = None
    """Lets the gang train with fewer pods."""
    network: Network = Network()
    """Whose network its pods are on. No meaning on one machine."""
    parallel: Parallel = Parallel()
    """How ranks divide the work."""
    seq_len: Annotated[int, Field(ge=16)] | None = None
    """Tokens that are packed into one micro-batch; at least ``model.maxModelLen``, which is the default."""
    optimizer: Optimizer = Optimizer()
    """Optimizer and learning-rate schedule."""
    gradient_accumulation: Literal["sharded", "unsharded"] = "sharded"
    """When ranks add up gradients. ``sharded``: after every micro-batch. ``unsharded``: once a step.

    A GPU then holds up to 6 bytes more per parameter.
    """
    router_replay: bool = False
    """Whether routers of a mixture of experts take the experts that engines chose. Refused for other models."""
    compile: bool | None = None
    """Whether the model is compiled by torch.compile; by default, on GPUs, unless experts are split."""
    activation_checkpointing: Literal["none", "selective", "full"] | None = None
    """Which activations the backward pass computes again, to save memory; by default selective on GPUs, else none."""
    profile: Profile = Profile()
    """What is traced."""
