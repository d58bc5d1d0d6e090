"""What the models say of their fields, for rules that have to spell it out."""

from typing import Any

from echorl_manifest.models.base import ApiModel
from echorl_manifest.schema import accepted_text, keys


def accepted(model: type[ApiModel], key: str) -> str:
    """What a field accepts, in words."""
    return accepted_text(keys(model)[key].rebuild_annotation())


def default(model: type[ApiModel], key: str) -> Any:
    """Of a field."""
    return keys(model)[key].get_default()
