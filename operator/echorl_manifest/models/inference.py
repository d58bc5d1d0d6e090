"""spec.inference and spec.orchestrator: the engines, and the role between them and the trainer."""

from typing import Annotated

from pydantic import Field

from echorl_manifest.models.base import PodTemplate, Text


class Inference(PodTemplate):
    """The vLLM engines."""

    replicas: Annotated[int, Field(ge=0, le=4096)] = 1
    """Number of engines. None are started, whatever this says, where nothing is sampled: in mode ``sft`` without eval
    environments. 0 is accepted there alone."""
    gpus_per_replica: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each engine. 0: it runs on the CPU."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] | None = None
    """GPUs that one copy of the model is split over. Default: ``gpusPerReplica``."""
    extra_args: Annotated[tuple[Text, ...], Field(strict=False, max_length=64)] = ()
    """Further arguments of ``vllm serve``, by their whole long names (``--quantization``, not ``-q``); those that
    EchoRL sets itself are refused."""


class Orchestrator(PodTemplate):
    """The role that plays episodes and makes batches."""
