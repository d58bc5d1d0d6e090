"""``python -m echorl_operator``: looks after EchoRLRuns until it is told to stop.

Exit codes: 0 stopped on request; 1 a part failed; 2 bad input; 70 the lease was lost.
"""

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import kopf
import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from echorl_core import logs
from echorl_core.names import ExitCode
from echorl_operator.handlers import registry
from echorl_operator.kube import credentials
from echorl_operator.metrics import Metrics
from echorl_operator.orchestrators import tokens
from echorl_operator.process import Operator, Options, running
from echorl_operator.settings import Settings
from echorl_operator.settings_file import read_settings

DEEPEST = 10_500
"""Levels that decoders follow, and room for what calls them. The API server takes objects of up to 10 000: with
Python's own limit, a single run with deeper ``args`` would end the watches of all, before anybody could refuse it."""

_log = structlog.get_logger()


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m echorl_operator", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--settings", type=Path, help="YAML file with the installation's settings")
    made.add_argument("--namespace", action="append", help="look after runs here alone; may be repeated")
    made.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    made.add_argument("--lease-namespace", help="namespace of the Lease; default: the first of --namespace")
    made.add_argument("--no-election", action="store_true", help="this is the only process there will ever be")
    made.add_argument("--probe-port", type=int, default=8080, help="port of /healthz (default: 8080)")
    made.add_argument("--metrics-port", type=int, default=9090, help="port of /metrics and /readyz (default: 9090)")
    made.add_argument("--bind", default="0.0.0.0", help="address of both (default: all)")  # noqa: S104 - probes come from outside
    made.add_argument("--workers", type=int, default=16, help="runs worked on at a time (default: 16)")
    made.add_argument("--log-style", choices=["json", "console"], default="json")
    made.add_argument("--version", action="version", version=version("echorl-operator"))
    return made


def instance_of(environ: Mapping[str, str]) -> str:
    """Who this process is in the election: its pod's name and uid, from ``POD_NAME`` and ``POD_UID``.

    Whoever has no pod, or is not told its uid, is somebody else after each start.
    """
    name, uid = environ.get("POD_NAME") or socket.gethostname(), environ.get("POD_UID") or secrets.token_hex(8)
    return f"{name}_{uid}"


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop; the exit code."""
    chosen = parser().parse_args(arguments)
    sys.setrecursionlimit(DEEPEST)
    logs.configure("operator", attempt=0, style=chosen.log_style)
    try:
        settings = read_settings(chosen.settings)
        made = tokens.from_file(Path(settings.master_key_path))
    except ValueError as error:
        _log.error("the operator cannot start", error=str(error))
        return ExitCode.BAD_INPUT
    return asyncio.run(_run(chosen, settings, made))


async def _run(chosen: argparse.Namespace, settings: Settings, made: tokens.Tokens) -> int:
    access = credentials.from_kubeconfig(chosen.kubeconfig) if chosen.kubeconfig else credentials.in_cluster()
    try:
        await access.load()
    except credentials.NoCredentials as error:
        _log.error("the operator cannot start", error=str(error))
        return ExitCode.BAD_INPUT
    options = Options(
        instance=instance_of(os.environ),
        lease_namespace=chosen.lease_namespace or (chosen.namespace or [settings.operator_namespace])[0],
        namespaces=chosen.namespace,
        workers=chosen.workers,
        lead=not chosen.no_election,
    )
    metrics, stop = Metrics(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(options, settings, made, access, metrics) as (operator, task):
        server = await _serve_metrics(operator, chosen.bind, chosen.metrics_port)
        frame = asyncio.create_task(_frame(operator, task, chosen, stop, access), name="kopf")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({task, frame, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return _ended(task, frame, stop)
        finally:
            stop.set()
            await asyncio.wait({frame}, timeout=10)
            stopping.cancel()
            await server.cleanup()


def _ended(task: "asyncio.Task[object]", frame: "asyncio.Task[None]", stop: asyncio.Event) -> int:
    # Once it runs, kopf has the signals; it ends without an error only after one.
    if stop.is_set() or (frame.done() and not frame.cancelled() and frame.exception() is None):
        return ExitCode.OK
    for part in (task, frame):
        if part.done() and not part.cancelled() and (error := part.exception()) is not None:
            _log.error("a part of the operator failed", part=part.get_name(), exc_info=error)
    return ExitCode.CRASH


async def _frame(
    operator: Operator,
    task: "asyncio.Task[object]",
    chosen: argparse.Namespace,
    stop: asyncio.Event,
    access: credentials.Credentials,
) -> None:
    await kopf.operator(
        registry=registry(operator, task, access),  # type: ignore[arg-type]
        standalone=True,
        clusterwide=chosen.namespace is None,
        namespaces=chosen.namespace or (),
        liveness_endpoint=f"http://{chosen.bind}:{chosen.probe_port}/healthz",
        stop_flag=stop,
    )


async def _serve_metrics(operator: Operator, host: str, port: int) -> web.AppRunner:
    async def scrape(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(operator.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def ready(_: web.Request) -> web.Response:
        why = operator.watchdog.not_ready()
        return web.Response(text=why or "ok", status=503 if why else 200)

    app = web.Application()
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/readyz", ready)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
