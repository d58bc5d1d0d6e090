"""Rendering by the engine: for families without a codec. Prompts come back as ids, without attribution, so no ECHO."""


class PromptTooLongError(Exception):
    """The prompt leaves no room for a completion under ``maxModelLen``."""


class EngineRendering:
    """Stands in for a codec: tells the gateway to send messages instead of ids."""

    attributed = False
