"""spec.inference and spec.orchestrator: the engines, and the role between them and the trainer."""

from typing import Annotated

from pydantic import Field

from echorl_manifest.models.base import Accepts, ApiModel, PodTemplate, Text

_HEADER_NAME = r"^[A-Za-z0-9-]+$"
_HEADER_VALUE = r"^[!-~]([ -~]*[!-~])?$"


class Header(ApiModel):
    """An HTTP header."""

    name: Annotated[str, Field(pattern=_HEADER_NAME, max_length=128), Accepts("1 to 128 letters, digits and '-'")]
    """In any case; one that EchoRL sets itself stays as it is."""
    value: Annotated[str, Field(pattern=_HEADER_VALUE, max_length=1024), Accepts("1 to 1024 characters of ASCII")]
    """No secret: it stands in the manifest, and in the orchestrator's config."""


class Autoscale(ApiModel):
    """Bounds of autoscaling."""

    min: Annotated[int, Field(ge=1, le=4096)]
    """Fewest engines."""
    max: Annotated[int, Field(ge=1, le=4096)]
    """Most engines."""


class Inference(PodTemplate):
    """The vLLM engines."""

    replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    """Number of engines. None are started, whatever this says, where nothing is sampled: in mode ``sft`` without eval
    environments. 0 is accepted there alone."""
    autoscale: Autoscale | None = None
    """Has the operator size the engines, from ``replicas`` on, by who waits for whom. A change of ``replicas`` alone
    turns that off until this changes; mode ``sft`` keeps ``replicas``."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each engine. 0: it runs on the CPU."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs that one copy of the model is split over. Default: ``gpusPerReplica``."""
    extra_args: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ()
    """Further arguments of ``vllm serve``, by their whole long names (``--quantization``, not ``-q``); those that
    EchoRL sets itself are refused."""
    extra_headers: Annotated[tuple[Header, ...], Field(strict=False, max_length=16)] = ()
    """Headers of every request that the orchestrator sends to engines, for a proxy between them."""


class Orchestrator(PodTemplate):
    """The role that plays episodes and makes batches."""
