"""spec.inference and spec.orchestrator: the engines, and the role between them and the trainer."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_manifest.models.base import Accepts, ApiModel, PodTemplate, Text
from echorl_manifest.models.network import Network

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


class Speculative(ApiModel):
    """Speculative decoding: guesses are checked several in one step. Samples and their logprobs stay the policy's."""

    method: Literal["ngram"]
    """``ngram``: what followed in the same text after the same last tokens. It needs no second model."""
    num_tokens: Annotated[int, Field(ge=1, le=16)] = 4
    """Tokens that are guessed in a step."""
    prompt_lookup_min: Annotated[int, Field(ge=1, le=64)] = 2
    """Fewest last tokens that must have been there before."""
    prompt_lookup_max: Annotated[int, Field(ge=1, le=64)] = 4
    """Most last tokens that are looked for; the longest match counts."""


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
    speculative: Speculative | None = None
    """Has engines guess tokens. Pays where answers repeat what stands in the text and few requests share an engine."""
    quantization: Literal["fp8"] | None = None
    """``fp8``: engines quantize the weights of linear layers as they load them, and what these multiply. For GPUs of
    compute capability 8.9 or newer, and losses that clip or mask the ratio of trainer and engine. Default:
    ``model.dtype``."""
    extra_args: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ()
    """Further arguments of ``vllm serve``, by their whole long names (``--attention-config``, not ``-ac``); those that
    EchoRL sets itself are refused."""
    extra_headers: Annotated[tuple[Header, ...], Field(strict=False, max_length=16)] = ()
    """Headers of every request that the orchestrator sends to engines, for a proxy between them."""
    network: Network = Network()
    """Whose network engines' pods are on. No meaning on one machine."""


class Orchestrator(PodTemplate):
    """The role that plays episodes and makes batches."""

    turn_journal: bool = False
    """true: keep what engines sample for train episodes on the run's volume until it is in a batch, so that an
    orchestrator that is started again need not have it sampled again where environments answer as before."""
