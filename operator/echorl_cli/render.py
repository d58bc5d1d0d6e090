"""``echorl render``: what a manifest compiles to, and what it would change of a run that is there."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.children import arrows_table, as_json, as_yaml, children, rendering_or_exit
from echorl_cli.cluster.options import ContextOption, KubeconfigOption, NamespaceOption
from echorl_cli.validate import SetOption, manifest_or_exit
from echorl_cli.yaml_text import to_yaml
from echorl_manifest import EchoRLRun
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs
from echorl_operator.children import Rendering, arrows


class Format(StrEnum):
    """Notation of the output."""

    YAML = "yaml"
    JSON = "json"


SettingsOption = Annotated[
    Path | None, typer.Option("--settings", metavar="FILE", help="Settings of the installation; else the defaults.")
]


def render_command(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Manifest (YAML).")] = None,
    overrides: SetOption = None,
    *,
    cluster: Annotated[bool, typer.Option("--cluster", help="The children that the operator makes.")] = False,
    connections: Annotated[bool, typer.Option("--arrows", help="The connections that are allowed.")] = False,
    diff: Annotated[
        str | None, typer.Option("--diff", metavar="RUN", help="What would change of a run in the cluster.")
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    settings: SettingsOption = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="Notation.")] = Format.YAML,
) -> None:
    """Print the resolved config of each role. Folders, hosts and ports are examples; a start chooses its own.

    With --cluster its children in a cluster, with --arrows who may talk to whom there, and why. With --diff what this
    version of EchoRL, or FILE, would change of a run: exit code 0 nothing, 1 something, above 1 an error.
    """
    chosen = [name for name, on in (("--cluster", cluster), ("--arrows", connections), ("--diff", diff)) if on]
    if len(chosen) > 1:
        raise typer.BadParameter(f"found {' and '.join(chosen)}, accepted is one of them")
    if diff is not None and output is not Format.YAML:
        raise typer.BadParameter(f"found --format {output} with --diff, accepted is yaml")
    if file is None and (diff is None or overrides):
        raise typer.BadParameter("found no FILE, accepted is one; --diff RUN alone needs none")
    run = None if file is None else manifest_or_exit(file, overrides)
    if diff is not None:
        # The client of a cluster takes longer to import than all else that this command does.
        from echorl_cli.cluster.compare import Edit, compare  # noqa: PLC0415

        edit = None if file is None or run is None else Edit(file, run)
        compare(diff, edit, settings=settings, kubeconfig=kubeconfig, context=context, namespace=namespace)
    elif file is not None and run is not None:
        if not chosen:
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
    return json.dumps([arrow.as_json() for arrow in arrows(rendering)], indent=2, ensure_ascii=False) + "\n"
