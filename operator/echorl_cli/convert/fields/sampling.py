"""How tokens are drawn in an environment: its own keys over those of its kind."""

from echorl_cli.convert.draft import Kind, ManifestDraft
from echorl_cli.convert.fields.model import longest_sequence
from echorl_cli.convert.keys.environments import EVAL
from echorl_cli.convert.settings import Settings

_PLAIN = {"temperature": "temperature", "top_p": "topP"}
_NEUTRAL = {
    "top_k": ("topK", (-1, 0)),
    "repetition_penalty": ("repetitionPenalty", (1,)),
    "presence_penalty": ("presencePenalty", (0,)),
    "frequency_penalty": ("frequencyPenalty", (0,)),
}
_SILENT = {"min_p": 0, "min_tokens": 0, "return_token_ids": True}
"""Values that change nothing, or that prime-rl itself always sends."""


def build(settings: Settings, draft: ManifestDraft, shared: str, own: str, to: str) -> None:
    """Write ``to`` (``spec.environments.train[0].sampling``) from the keys under ``own`` and ``shared``."""
    for name, field in _PLAIN.items():
        key = _key(settings, shared, own, name)
        if key:
            draft.put(f"{to}.{field}", settings.number(key), key)
    if shared.startswith(EVAL) and not all(_key(settings, shared, own, name) for name in _PLAIN):
        text = "the engine's own in prime-rl, which follow the model's generation_config.json"
        draft.tell(Kind.DEFAULT, to, f"temperature and topP are {text}; here 1 where they are not set")
    key = _key(settings, shared, own, "max_completion_tokens")
    tokens = settings.count(key) if key else None
    draft.put(f"{to}.maxCompletionTokens", longest_sequence(draft) if tokens is None else tokens, key or "")
    for name, (field, neutral) in _NEUTRAL.items():
        key = _key(settings, shared, own, name)
        value = settings.number(key) if key else None
        if key and value not in neutral:
            draft.put(f"{to}.{field}", value, key)
    for name, neutral_value in _SILENT.items():
        for base in (own, shared, f"{own}.extra_body", f"{shared}.extra_body"):
            if settings.peek(f"{base}.{name}") == neutral_value:
                settings.value(f"{base}.{name}")


def _key(settings: Settings, shared: str, own: str, name: str) -> str | None:
    """Where the value is: the environment's own first, in ``extra_body`` where it has no key of its own."""
    places = (f"{own}.{name}", f"{own}.extra_body.{name}", f"{shared}.{name}", f"{shared}.extra_body.{name}")
    return settings.first(*places)
