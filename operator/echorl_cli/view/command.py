"""``echorl view [RUN...]``: a page to look at runs, on this machine."""

import importlib.util
import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from echorl_cli.folders import named_path
from echorl_cli.view.folders import NoRuns, shown_runs
from echorl_core.names import ExitCode

PORT = 8765
_NEEDED = ("duckdb", "nicegui")


def _refuse(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(int(ExitCode.BAD_INPUT))


def _listener(host: str, port: int) -> socket.socket:
    """A socket that listens; nobody is answered before the server runs."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise _refuse(
            f"--host {host} --port {port}: {reason}; accepted: an address of this machine, a free port, 0: any"
        ) from None
    return made


def _url(listener: socket.socket, token: str) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.gethostname()
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def view_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            parser=named_path, metavar="[RUN_DIR]...", help="Directories of runs; default: all below runs/."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to serve at; beyond this machine visitors need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = PORT,
) -> None:
    """Look at runs side by side in a browser: curves, batches, episodes with their tokens and times; live.

    Reads the runs' directories, also ones copied from a volume, and writes nothing. Ends with Ctrl-C.
    """
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise _refuse(f"found no package {' nor '.join(lacking)}; they come with: pip install 'echorl-cli[view]'")
    try:
        shown = shown_runs(runs or [])
    except NoRuns as error:
        raise _refuse(str(error)) from None
    listener = _listener(host, port)
    here = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    token = "" if here else secrets.token_urlsafe(24)

    from echorl_cli.view.watch import Watch  # noqa: PLC0415 - after the checks, and the server after the first look:

    watch = Watch(shown)
    watch.start()  # DuckDB reads while the server's parts are imported, a second of work.

    from echorl_cli.view.server import serve  # noqa: PLC0415

    typer.echo(f"{len(shown)} run{'s' if len(shown) > 1 else ''}: {_url(listener, token)}")
    try:
        serve(watch, listener, token)
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        watch.close()
