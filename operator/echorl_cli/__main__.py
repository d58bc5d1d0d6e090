"""Entry point of ``echorl``. Imports a command's module only when that command, or the list of all, is asked for."""

import importlib
import io
import sys
from typing import Annotated

import typer

from echorl_core import __version__

# name -> (module, function). The function's docstring is the command's help.
COMMANDS = {
    "validate": ("echorl_cli.validate", "validate_command"),
    "plan": ("echorl_cli.plan.command", "plan_command"),
    "render": ("echorl_cli.render", "render_command"),
    "run": ("echorl_cli.local.run", "run_command"),
    "preflight": ("echorl_cli.preflight.command", "preflight_command"),
    "prepare": ("echorl_cli.local.prepare", "prepare_command"),
    "report": ("echorl_cli.report.command", "report_command"),
    "plot": ("echorl_cli.report.plot", "plot_command"),
    "tokens": ("echorl_cli.tokens", "tokens_command"),
    "view": ("echorl_cli.view.command", "view_command"),
    "convert": ("echorl_cli.convert.command", "convert_command"),
    "status": ("echorl_cli.cluster.status", "status_command"),
    "environments": ("echorl_cli.environments.command", "environments_command"),
    "why": ("echorl_cli.cluster.why", "why_command"),
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"echorl {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement learning of language models, described by one manifest."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file's name may be of bytes that are no text
            stream.reconfigure(errors="backslashreplace")


def app_for(arguments: list[str]) -> typer.Typer:
    """The command line, with the one command that ``arguments`` name; with all of them if they name none."""
    app = typer.Typer(name="echorl", no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)
    app.callback()(_options)
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name in [named] if named in COMMANDS else COMMANDS:
        module, function = COMMANDS[name]
        app.command(name)(getattr(importlib.import_module(module), function))
    return app


def main(name: str = "echorl") -> None:
    """Run the command line. ``name``: as the user calls it."""
    arguments = sys.argv[1:]
    app_for(arguments)(args=arguments, prog_name=name)


def kubectl_main() -> None:
    """Run the command line as a plug-in of kubectl: ``kubectl echorl ...``."""
    main("kubectl echorl")


if __name__ == "__main__":
    main()
