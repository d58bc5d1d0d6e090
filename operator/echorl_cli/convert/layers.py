"""The files of a run as one tree: later files over earlier ones, role files in their section.

Tables merge key by key, lists are replaced whole, and the text ``None`` is null, as prime-rl reads
``@ a.toml @ b.toml``.
"""

import tomllib
from collections.abc import Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from echorl_cli.convert.problem import refused
from echorl_core.capped import read_capped

_MAX_BYTES = 16_000_000
SECTIONS = ("trainer", "orchestrator", "inference")
_ROLE_NAMES = {
    "trainer": "trainer",
    "train": "trainer",
    "orchestrator": "orchestrator",
    "orch": "orchestrator",
    "inference": "inference",
    "infer": "inference",
}


def _plain(value: Any, file: Path) -> Any:
    """Nulls for the text ``None``; dates, which no key takes, are refused."""
    if isinstance(value, dict):
        return {key: _plain(item, file) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, file) for item in value]
    if isinstance(value, date | datetime | time):
        raise refused(str(file), f"the date or time {value}", "text in quotes")
    return None if value == "None" else value


def read_toml(file: Path) -> dict[str, Any]:
    """Read one file.

    Raises:
        ConversionError: it cannot be read, is no TOML, or holds dates.
    """
    if file.suffix == ".json":
        raise refused(str(file), "a resolved configuration in JSON", "the TOML that it was made from")
    try:
        text = read_capped(file, _MAX_BYTES).decode()
    except OSError as error:
        raise refused(str(file), error.strerror or str(error), "a readable TOML file") from None
    except UnicodeDecodeError as error:
        raise refused(str(file), f"byte {error.start} is no UTF-8", "UTF-8 text") from None
    try:
        return dict(_plain(tomllib.loads(text), file))
    except ValueError as error:  # integers of thousands of digits too
        raise refused(str(file), f"no TOML: {error}", "a TOML file") from None
    except RecursionError:
        raise refused(str(file), "values nested too deep", "a TOML file") from None


def laid_over(base: dict[str, Any], layer: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``layer`` over it: tables merge key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in layer.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def role_of(file: Path, document: dict[str, Any]) -> str | None:
    """The role that a file is for by its name (``trainer.toml``, ``orch.toml``); None for one of the whole run."""
    if any(isinstance(document.get(section), dict) for section in SECTIONS):
        return None
    return _ROLE_NAMES.get(file.stem.lower())


def read_layers(files: Sequence[tuple[str | None, Path]]) -> dict[str, Any]:
    """The tree of all files.

    Args:
        files: each with the section that it stands for, or None to tell by its name; base first.

    Raises:
        ConversionError: a file that cannot be read, or no file.
    """
    if not files:
        raise refused("FILE", "no file", "the TOML files of a run, base first")
    tree: dict[str, Any] = {}
    for section, file in files:
        document = read_toml(file)
        role = section or role_of(file, document)
        tree = laid_over(tree, {role: document} if role else document)
    return tree
