"""``echorl render FILE``: what a manifest compiles to: configs of roles, children in a cluster, connections."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.children import arrows_table, as_json, as_yaml, children, rendering_or_exit
from echorl_cli.cluster.options import NamespaceOption
from echorl_cli.validate import ManifestArgument, SetOption, manifest_or_exit
from echorl_cli.yaml_text import to_yaml
from echorl_operator.api import EchoRLRun
from echorl_operator.build import Rendering, arrows, example_placement, role_configs


class Format(StrEnum):
    """Notation of the output."""

    YAML = "yaml"
    JSON = "json"


SettingsOption = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="Settings of the installation; else the defaults.")
]


def render_command(
    file: ManifestArgument,
    overrides: SetOption = None,
    *,
    cluster: Annotated[bool, typer.Option("--cluster", help="The children that the operator makes.")] = False,
    connections: Annotated[bool, typer.Option("--arrows", help="The connections that are allowed.")] = False,
    namespace: NamespaceOption = None,
    settings: SettingsOption = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Notation.")] = Format.YAML,
) -> None:
    """Print the resolved config of each role. Folders, hosts and ports are examples; a start chooses its own.

    With --cluster its children in a cluster, with --arrows who may talk to whom there, and why.
    """
    if cluster and connections:
        raise typer.BadParameter("found --cluster and --arrows, accepted is one of them")
    run = manifest_or_exit(file, overrides)
    if not cluster and not connections:
        typer.echo(_configs(run, output), nl=False)
        return
    rendering = rendering_or_exit(file, run, namespace, settings)
    typer.echo((_children if cluster else _arrows)(rendering, output), nl=False)


def _configs(run: EchoRLRun, output: Format) -> str:
    configs = role_configs(run, example_placement(run)).model_dump(mode="json")
    return to_yaml(configs) if output is Format.YAML else json.dumps(configs, indent=2, ensure_ascii=False) + "\n"


def _children(rendering: Rendering, output: Format) -> str:
    bodies = children(rendering, attempt=1)
    return as_yaml(bodies) if output is Format.YAML else as_json(bodies)


def _arrows(rendering: Rendering, output: Format) -> str:
    if output is Format.YAML:
        return arrows_table(rendering)
    return json.dumps([one.as_json() for one in arrows(rendering)], indent=2, ensure_ascii=False) + "\n"
