"""``python -m echorl_broker``: makes sandbox pods for runs until it is told to stop.

Exit codes: 0 stopped on request; 1 a part failed; 2 bad input.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from pathlib import Path

import structlog
from aiohttp import web

from echorl_broker.agent_sandbox import AgentSandboxes
from echorl_broker.broker import Broker
from echorl_broker.metrics import BrokerMetrics
from echorl_broker.pods import Cluster
from echorl_broker.reaping import EVERY_S, Reaper
from echorl_broker.server import application, metrics_application
from echorl_broker.settings import BrokerSettings, read_settings
from echorl_core import logs
from echorl_core.names import ExitCode
from echorl_core.wire.sandboxes import BROKER_PORT
from echorl_operator.kube import credentials
from echorl_operator.kube.connection import Connection
from echorl_operator.orchestrators import tokens

_log = structlog.get_logger()


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m echorl_broker", description=(__doc__ or "").split("\n")[0])
    made.add_argument("--settings", type=Path, required=True, help="YAML file with what sandbox pods are made by")
    made.add_argument("--namespace", action="append", help="runs are looked after here alone; may be repeated")
    made.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    made.add_argument("--port", type=int, default=BROKER_PORT, help=f"where it listens (default: {BROKER_PORT})")
    made.add_argument("--metrics-port", type=int, default=9090, help="where it serves /metrics (default: 9090)")
    made.add_argument("--bind", default="0.0.0.0", help="address of both (default: all)")  # noqa: S104 - runs ask from their pods
    made.add_argument("--reap-every", type=float, default=EVERY_S, metavar="SECONDS", help="(default: %(default)s)")
    made.add_argument("--log-style", choices=["json", "console"], default="json")
    made.add_argument("--version", action="version", version=version("echorl-operator"))
    return made


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop; the exit code."""
    chosen = parser().parse_args(arguments)
    logs.configure("broker", attempt=0, style=chosen.log_style)
    try:
        settings = read_settings(chosen.settings)
        made = tokens.from_file(Path(settings.master_key_path))
    except ValueError as error:
        _log.error("the broker cannot start", error=str(error))
        return ExitCode.BAD_INPUT
    return asyncio.run(_run(chosen, settings, made))


async def _run(chosen: argparse.Namespace, settings: BrokerSettings, made: tokens.Tokens) -> int:
    access = credentials.from_kubeconfig(chosen.kubeconfig) if chosen.kubeconfig else credentials.in_cluster()
    agent, metrics = f"echorl-broker/{version('echorl-operator')}", BrokerMetrics()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(Connection(access, metrics, agent))
            clusters = {"pod": Cluster(connection)}
            if settings.agent_sandbox:
                clusters["agent-sandbox"] = AgentSandboxes(connection)
            reaper = Reaper(clusters, chosen.namespace, settings.start_deadline_seconds, metrics)
            app = application(Broker(clusters, made, settings, metrics))
            await stack.enter_async_context(_served(app, chosen.bind, chosen.port))
            await stack.enter_async_context(_served(metrics_application(metrics), chosen.bind, chosen.metrics_port))
            return await _until_told(reaper, chosen.reap_every, stop)
    except credentials.NoCredentials as error:
        _log.error("the broker cannot start", error=str(error))
        return ExitCode.BAD_INPUT
    except OSError as error:
        _log.error("the broker cannot listen", error=str(error))
        return ExitCode.CRASH


@asynccontextmanager
async def _served(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


async def _until_told(reaper: Reaper, every_s: float, stop: asyncio.Event) -> int:
    reaping = asyncio.create_task(reaper.run(every_s), name="reaper")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({reaping, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if reaping.done() and not reaping.cancelled():
        _log.error("a part of the broker failed", part=reaping.get_name(), exc_info=reaping.exception())
        return ExitCode.CRASH
    reaping.cancel()
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
