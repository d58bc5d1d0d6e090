"""What the gateway adds to a turn: agents over HTTP on one core, the gateway on another.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.gateway [--at-once 64] [--seconds 20] [--repeats 1]

Agents play episodes of 8 turns by OpenAI's chat completions and send every message anew each time. A fake engine takes
as many milliseconds for a turn as it is asked for tokens, 300 to 900; overhead is what a turn takes its agent beyond
them, so the agents' own time and the engine's delays are in it. With it: the gateway's CPU time a turn, and for which
share of the time each of the three processes was ready and had no processor.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from aiohttp import web

from benchmarks.orchestrator_clients import FED, FIRST, FOUR_LETTERS, TURNS, dispatcher
from echorl_core.config import SamplingConfig
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.control.slow_connections import SlowConnections
from echorl_orchestrator.gateway.bodies import LARGEST_BODY
from echorl_orchestrator.gateway.http import GatewayApi
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.sessions import Sessions, UnknownSessionError
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

SHORTEST, LONGEST = 300, 900
"""Milliseconds of a turn at the engine."""
WARM_UP_S = 3.0


class _OnDemand(Sessions):
    """Opens the session that is asked for, and closes that of its place's episode before."""

    def __init__(self, codec: CompactCodec, port: int) -> None:
        super().__init__()
        self._codec, self._dispatcher = codec, dispatcher(port)
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, key: str) -> GatewaySession:
        try:
            return super().get(key)
        except UnknownSessionError:
            place, _, episode = key.rpartition("-")
            closing = asyncio.create_task(self.close(f"{place}-{int(episode) - 1}"))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            sampling = SamplingConfig(max_completion_tokens=LONGEST)
            return self.open(SessionSpec(key, key, self._codec, self._dispatcher, sampling, 1 << 20))


async def serve(port: int) -> None:
    """The gateway before the engine at ``port``, as the role serves it; prints its own port."""
    with tempfile.TemporaryDirectory() as folder:
        codec = CompactCodec(TextTokenizer(write_byte_tokenizer(Path(folder)), name="bytes"))

    def fail(error: BaseException) -> None:
        print(error, file=sys.stderr)

    app = web.Application(client_max_size=LARGEST_BODY, middlewares=[SlowConnections().middleware()])
    GatewayApi(_OnDemand(codec, port), fail).routes(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    # As the role does.
    gc.collect()
    gc.freeze()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


async def play(port: int, at_once: int, seconds: float) -> None:
    """The agents; prints a line when the warm-up is over and then each turn's overhead in ms, sorted."""
    drawn, overheads = random.Random(0), []
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def place(number: int) -> None:
        episode = 0
        while True:
            url = f"http://127.0.0.1:{port}/s/p{number}-{episode}/v1/chat/completions"
            messages: list[Any] = [{"role": "user", "content": FOUR_LETTERS * FIRST}]
            for _ in range(TURNS):
                engine_ms = drawn.randint(SHORTEST, LONGEST)
                started = time.perf_counter()
                async with session.post(url, json={"messages": messages, "max_tokens": engine_ms}) as response:
                    answer = await response.json()
                overheads.append(1e3 * (time.perf_counter() - started) - engine_ms)
                messages += [answer["choices"][0]["message"], {"role": "user", "content": FOUR_LETTERS * FED}]
            episode += 1

    places = asyncio.gather(*(place(number) for number in range(at_once)))
    await asyncio.wait({places}, timeout=WARM_UP_S)
    overheads.clear()
    print("warm", flush=True)
    await asyncio.wait({places}, timeout=seconds)
    if places.done():
        places.result()
    print(json.dumps(sorted(overheads)), flush=True)
    os._exit(0)


@contextmanager
def _process(core: int, *command: str) -> Iterator["subprocess.Popen[str]"]:
    def pin() -> None:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})

    command = (sys.executable, "-m", *command)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=pin) as process:  # noqa: PLW1509 - no threads here
        try:
            yield process
        finally:
            process.kill()


def _line(process: "subprocess.Popen[str]") -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"{process.args!r} ended")
    return line


def _ran(process: "subprocess.Popen[str]") -> tuple[float, float]:
    """Seconds that it ran, and that it was ready to and waited."""
    ran, waited, _ = Path(f"/proc/{process.pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def measure(at_once: int, seconds: float) -> dict[str, float]:
    """One run of all three processes."""
    with (
        _process(-1, "benchmarks.orchestrator_server", "--asked") as engine,
        _process(0, "benchmarks.gateway", "serve", _line(engine)) as gateway,
        _process(-1, "benchmarks.gateway", "play", _line(gateway), str(at_once), str(seconds)) as agents,
    ):
        processes = {"gateway": gateway, "agents": agents, "engine": engine}
        _line(agents)
        before, began = {name: _ran(one) for name, one in processes.items()}, time.perf_counter()
        overheads = json.loads(_line(agents))
        wall = time.perf_counter() - began
        ran, waited = ({name: _ran(one)[k] - before[name][k] for name, one in processes.items()} for k in (0, 1))
    quantiles = {f"p{share}_ms": overheads[int(share / 100 * (len(overheads) - 1))] for share in (50, 99)}
    return {
        **quantiles,
        "turns_per_s": len(overheads) / wall,
        "cpu_ms_per_turn": 1e3 * ran["gateway"] / len(overheads),
        **{f"{name}_waited": waited[name] / wall for name in processes},
    }


def main() -> None:
    """Measure, and print the medians of the repeats."""
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(int(sys.argv[2])))
    if sys.argv[1:2] == ["play"]:
        uvloop.run(play(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=64, help="episodes (default: 64)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one run (default: 20)")
    parser.add_argument("--repeats", type=int, default=1, help="(default: 1)")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.at_once} episodes at once", flush=True)
    runs = [measure(options.at_once, options.seconds) for _ in range(options.repeats)]
    for name in runs[0]:
        values = [run[name] for run in runs]
        print(f"gateway   {name:16} {statistics.median(values):8.3f}  ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
