"""spec.model: which model trains, and in what precision."""

from typing import Annotated, Literal

from pydantic import Field

from echorl_core.codecs import CodecName
from echorl_manifest.models.base import ApiModel, ObjectName, Text


class Lora(ApiModel):
    """Train a low-rank adapter instead of all weights."""

    rank: Annotated[int, Field(ge=1, le=512)] = 32
    """Rank of the two factors; vLLM takes up to 512."""
    alpha: Annotated[float, Field(gt=0)] = 64.0
    """Scale: the adapter's output is multiplied by alpha / rank."""
    target_modules: Annotated[tuple[Text, ...], Field(strict=False, min_length=1, max_length=64)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    )
    """Linear layers that get an adapter: ``q_proj`` names that of every layer, ``model.layers.0.self_attn.q_proj`` one.

    Each must name one of the model's at least.
    """


class ModelSpec(ApiModel):
    """The model under training."""

    name: Text
    """Hub id (``organisation/name``), or a path.

    A text that starts with ``/``, ``.`` or ``~``, or has several ``/``, is a path.
    """
    revision: Text = "main"
    """Branch, tag or commit of a hub id."""
    token_secret_name: ObjectName | None = None
    """Secret with the hub token; only the prepare step reads it."""
    renderer: CodecName = "auto"
    """Codec between messages and tokens.

    ``auto``: by the model's family; ``engine``: vLLM renders, which excludes ECHO; ``compact``: a small one of our own
    for models that are trained from nothing. The others are families of models.
    """
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    """Longest sequence, prompt and completions, in tokens.

    Default: 4096, or less where the model or ``trainer.seqLen`` is shorter.
    """
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the engines' weights and the trainer's compute. Master weights are float32."""
    lora: Lora | None = None
    """Train a low-rank adapter, and freeze the model under it. Absent: all weights train."""


def is_path(name: str) -> bool:
    """Whether ``model.name`` is a path; else it is a hub id."""
    return name.startswith(("/", ".", "~")) or name.count("/") > 1
