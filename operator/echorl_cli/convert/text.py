"""A conversion as YAML with its lines as comments, and the lines for a terminal."""

from collections.abc import Sequence
from pathlib import Path

from echorl_cli.convert.conversion import Conversion
from echorl_cli.convert.draft import Kind
from echorl_cli.yaml_text import to_yaml


def on_one_line(text: str) -> str:
    """Text without anything that ends a line or moves a cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def manifest_text(conversion: Conversion, files: Sequence[Path]) -> str:
    """The manifest, and every line about it as a comment at its end."""
    names = ", ".join(on_one_line(file.name) for file in files)
    body = to_yaml(conversion.document)
    comments = "".join(f"# {on_one_line(line.comment)}\n" for line in conversion.lines)
    head = f"# Made from {names} by `echorl convert prime-rl`; what it could not carry over stands at the end.\n"
    return f"{head}{body}{comments}"


def summary(conversion: Conversion) -> str:
    """How many lines of each kind there are."""
    counts = {kind: sum(line.kind is kind for line in conversion.lines) for kind in Kind}
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
