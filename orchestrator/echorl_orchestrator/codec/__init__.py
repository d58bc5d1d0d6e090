"""Chat messages to token ids and back."""

from pathlib import Path

from echorl_core.config import ModelConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.engine_rendering import EngineRendering
from echorl_orchestrator.codec.protocol import ChatCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer


def build_codec(model: ModelConfig) -> ChatCodec | EngineRendering:
    """The codec that ``model.renderer`` names: a family, ``auto``, ``compact`` or ``engine``.

    Raises:
        BadInputError: unknown renderer, a model that ``auto`` does not know, or a tokenizer that does not fit.
    """
    folder = Path(model.path)
    if model.renderer == "engine":
        return EngineRendering()
    if model.renderer == "compact":
        return CompactCodec(TextTokenizer(folder, name=folder.name))
    # Its package imports clients of services: half of the seconds that a start takes.
    from echorl_orchestrator.codec.renderers_codec import RenderersCodec, family_of  # noqa: PLC0415

    if model.renderer == "auto":
        family, name = family_of(folder)
        return RenderersCodec(TextTokenizer(folder, name=name), family)
    return RenderersCodec(TextTokenizer(folder, name=folder.name), model.renderer)
