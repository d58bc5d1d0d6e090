"""``echorl convert prime-rl FILE...``: an EchoRLRun manifest from the files of another system."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.convert.conversion import Conversion, Options, convert
from echorl_cli.convert.problem import ConversionError, refused
from echorl_cli.convert.text import manifest_text, on_one_line, summary
from echorl_cli.output_path import OutputRefused, check_output_file, write_output
from echorl_core.names import ExitCode


class System(StrEnum):
    """Whose files are converted."""

    PRIME_RL = "prime-rl"


def _layers(words: list[str]) -> list[tuple[str | None, Path]]:
    """Files of ``@ base.toml @ over.toml``, or without the signs."""
    names = [word.removeprefix("@") for word in words]
    return [(None, Path(name)) for name in names if name]


def _types(pairs: list[str]) -> dict[str, str]:
    types = {}
    for pair in pairs:
        name, equals, kind = pair.partition("=")
        if not (name and equals and kind):
            raise refused("--environment", repr(pair), "NAME=TYPE, such as reverse-text=import:pkg.module:factory")
        types[name] = kind
    return types


def _role_files(roles: dict[str, Path | None]) -> list[tuple[str | None, Path]]:
    if any(str(file) == "@" for file in roles.values()):
        raise refused("--trainer, --orchestrator, --inference", "'@'", "the file itself, without the sign")
    return [(role, file) for role, file in roles.items() if file is not None]


def _print(conversion: Conversion, files: list[Path], out: Path | None) -> None:
    text = manifest_text(conversion, files)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_output(out, text.encode(), "--out")
    for line in conversion.lines:
        typer.echo(on_one_line(str(line)), err=True)
    if out is not None:
        typer.echo(f"{out}: run {conversion.run.metadata.name}; {summary(conversion)}", err=True)


def convert_command(
    system: Annotated[System, typer.Argument(help="Whose files they are.")],
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="TOML files, base first, with or without @ between them."),
    ] = None,
    *,
    trainer: Annotated[Path | None, typer.Option(help="File of the trainer's section, laid over the others.")] = None,
    orchestrator: Annotated[Path | None, typer.Option(help="The same of the orchestrator.")] = None,
    inference: Annotated[Path | None, typer.Option(help="The same of the engines.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    name: Annotated[str | None, typer.Option(help="metadata.name; default: what the files call the run.")] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE", help="Type of an environment, by its name or id. May be repeated."),
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave out unknown keys and algorithms, with a line each.")
    ] = False,
) -> None:
    """Write a manifest from the TOML files of a prime-rl run, and a line for each key that has no counterpart."""
    try:
        roles = {"trainer": trainer, "orchestrator": orchestrator, "inference": inference}
        layers = [*_layers(files or []), *_role_files(roles)]
        read = [file for _, file in layers]
        if out is not None:
            check_output_file(out, "--out", read)
        conversion = convert(layers, Options(name, _types(environment or []), keep_going))
        _print(conversion, read, out)
    except ConversionError as error:
        for problem in error.problems:
            typer.echo(on_one_line(str(problem)), err=True)
        typer.echo(
            f"{len(error.problems)} problem{'s' if len(error.problems) > 1 else ''}; nothing is written", err=True
        )
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
    except OutputRefused as error:
        typer.echo(on_one_line(str(error)), err=True)
        raise typer.Exit(int(ExitCode.BAD_INPUT)) from None
