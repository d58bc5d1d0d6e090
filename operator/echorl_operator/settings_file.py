"""The installation's settings as a file has them: for its operator, and for commands that render as it does."""

from importlib.metadata import version
from pathlib import Path

import yaml
from pydantic import ValidationError

from echorl_operator.settings import Settings


def read_settings(path: Path | None) -> Settings:
    """The installation's settings; without a file the defaults.

    Raises:
        ValueError: names the file and every field that is wrong.
    """
    try:
        return settings_of("" if path is None else path.read_text(), str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error


def settings_of(text: str, source: str) -> Settings:
    """The settings that a YAML text holds.

    Args:
        text: of the file.
        source: what messages call it.

    Raises:
        ValueError: names the source and every field that is wrong.
    """
    try:
        found = yaml.safe_load(text) or {}
        if not isinstance(found, dict):
            raise ValueError(f"{source}: found a {type(found).__name__}, accepted is a mapping")
        return Settings.model_validate({"operatorVersion": version("echorl-operator"), **found})
    except (yaml.YAMLError, ValidationError) as error:
        raise ValueError(f"{source}: {error}") from error
