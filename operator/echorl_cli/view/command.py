"""``echorl view [RUN...]``: a page to look at runs, on this machine."""

import importlib.util
import ipaddress
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echorl_cli.cluster.kubeconfig import NoSuchPlace, place
from echorl_cli.cluster.options import ContextOption, KubeconfigOption, NamespaceOption
from echorl_cli.folders import named_path
from echorl_cli.view.folders import NoRuns, ShownRun, shown_runs
from echorl_core.names import ExitCode
from echorl_manifest.models.base import is_namespace

if TYPE_CHECKING:
    from echorl_cli.view.mirror import Mirror

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
    *,
    host: Annotated[
        str, typer.Option(help="Address to serve at; beyond this machine visitors need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = PORT,
    run: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An EchoRLRun in a cluster; may be given again.")
    ] = None,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Look at runs side by side in a browser: curves, batches, episodes with their tokens and times; live.

    Reads the runs' directories, also ones copied from a volume, and writes nothing; of runs in a cluster it keeps
    copies while it runs. Ends with Ctrl-C.
    """
    lacking = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        raise _refuse(f"found no package {' nor '.join(lacking)}; they come with: pip install 'echorl-cli[view]'")
    with _mirrored(run or [], namespace, context, kubeconfig) as mirror:
        folders = [*(runs or []), *(mirror.folders if mirror else [])]
        try:
            shown = shown_runs(folders)
        except NoRuns as error:
            raise _refuse(str(error)) from None
        _serve(shown, mirror, _listener(host, port))


@contextmanager
def _mirrored(
    names: Sequence[str], namespace: str | None, context: str | None, kubeconfig: Path | None
) -> Iterator["Mirror | None"]:
    """Copies of the runs that are named, kept new; None where none is."""
    if not names:
        if options := [one for one in (namespace, context, kubeconfig) if one is not None]:
            raise _refuse(f"--namespace, --context, --kubeconfig: found {options[0]}, accepted with --run alone")
        yield None
        return
    for name in names:
        if not is_namespace(name) or names.count(name) > 1:
            raise _refuse(f"--run: found {name[:80]!r}; accepted: each EchoRLRun once, by its name")

    from echorl_cli.cluster.access import Told  # noqa: PLC0415 - as below
    from echorl_cli.view.mirror import Mirror  # noqa: PLC0415 - the Kubernetes client takes a second

    with tempfile.TemporaryDirectory(prefix="echorl-view-", ignore_cleanup_errors=True) as folder:
        try:
            mirror = Mirror(place(kubeconfig, context, namespace), names, Path(folder))
            mirror.start()
        except NoSuchPlace as error:
            raise _refuse(str(error)) from None
        except Told as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(int(error.code)) from None
        try:
            yield mirror
        finally:
            mirror.close()


def _serve(shown: Sequence[ShownRun], mirror: "Mirror | None", listener: socket.socket) -> None:
    here = ipaddress.ip_address(listener.getsockname()[0]).is_loopback
    token = "" if here else secrets.token_urlsafe(24)

    from echorl_cli.view.watch import Watch  # noqa: PLC0415 - after the checks, and the server after the first look:

    watch = Watch(shown, (lambda: mirror.notices) if mirror else list)
    watch.start()  # DuckDB reads while the server's parts are imported, a second of work.

    from echorl_cli.view.server import serve  # noqa: PLC0415

    typer.echo(f"{len(shown)} run{'s' if len(shown) > 1 else ''}: {_url(listener, token)}")
    try:
        serve(watch, listener, token)
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        watch.close()
