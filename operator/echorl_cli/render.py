"""``echorl render FILE``: the typed config of each role that a manifest compiles to."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from echorl_cli.validate import ManifestArgument, SetOption, manifest_or_exit
from echorl_cli.yaml_text import to_yaml
from echorl_operator.build import example_placement, role_configs


class Format(StrEnum):
    """Notation of the output."""

    YAML = "yaml"
    JSON = "json"


def render_command(
    file: ManifestArgument,
    overrides: SetOption = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Notation.")] = Format.YAML,
) -> None:
    """Print the resolved config of each role. Folders, hosts and ports are examples; a start chooses its own."""
    run = manifest_or_exit(file, overrides)
    configs = role_configs(run, example_placement(run)).model_dump(mode="json")
    if output is Format.JSON:
        typer.echo(json.dumps(configs, indent=2, ensure_ascii=False))
    else:
        typer.echo(to_yaml(configs), nl=False)
