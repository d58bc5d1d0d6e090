"""The installation's settings as a file has them: for its operator, and for commands that render as it does."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from echorl_core.capped import read_capped
from echorl_operator.settings import Settings

_MAX_BYTES = 1_000_000


def read_settings(path: Path | None, parse: Callable[[str], Any] = yaml.safe_load) -> Settings:
    """The installation's settings; without a file the defaults.

    Args:
        path: of the file.
        parse: reads its YAML; raises ValueError or yaml.YAMLError.

    Raises:
        ValueError: names the file and every field that is wrong.
    """
    try:
        text = "" if path is None else read_capped(path, _MAX_BYTES).decode()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found byte {error.start} that is no UTF-8, accepted is YAML text") from error
    return settings_of(text, str(path), parse)


def settings_of(text: str, source: str, parse: Callable[[str], Any] = yaml.safe_load) -> Settings:
    """The settings that a YAML text holds.

    Args:
        text: of the file.
        source: what messages call it.
        parse: as ``read_settings`` has it.

    Raises:
        ValueError: names the source and every field that is wrong.
    """
    try:
        document = parse(text) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{source}: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{source}: found a {type(document).__name__}, accepted is a mapping")
    try:
        return Settings.model_validate({"operatorVersion": version("echorl-operator"), **document})
    except ValidationError as error:
        raise ValueError(f"{source}: {error}") from error
