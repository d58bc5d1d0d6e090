"""From an update to the version that a real engine serves, and how long its requests get no token meanwhile.

    PYTHONPATH=core:operator:orchestrator:trainer:tests/support python3 -m benchmarks.publication.engine --out DIR

A policy, the run's pool of engines and one engine of vLLM, on one GPU, or the engine on the second one where there are
two, as ``--mode nccl`` needs: the policy is changed and published, the pool brings the engine to it, and streams of
tokens go on. ``DIR/engine.json`` gets the medians.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import torch

from benchmarks.publication.__main__ import DEADLINE_S, IDENTITY, change
from echorl_core import names
from echorl_core.config import (
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    InferenceConfig,
    ModelConfig,
    OrchestratorConfig,
    Quantization,
)
from echorl_core.run_token import weights_key
from echorl_orchestrator.engines.pool import EnginePool
from echorl_testing.ports import free_port
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.ending import end
from echorl_trainer.health import Health
from echorl_trainer.loading import start_policy
from echorl_trainer.parallel import connect, disconnect
from echorl_trainer.probe import probe_ids
from echorl_trainer.publish import Publisher
from echorl_trainer.seeded import SHAPES, write_seeded_model
from echorl_trainer.server import Server
from echorl_trainer.weights import MemoryStore

KEY = "benchmark"
PROMPT, ANSWER = 64, 512
"""Tokens of a stream's requests."""
START_S = 300.0
CALM_S = 1.0
"""Between two updates, when streams are looked at for comparison."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results, the model and the engine's files")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--python", default=sys.executable, help="of the environment that holds vLLM")
    parser.add_argument("--engine-args", nargs="*", default=[], help="for vLLM; beginning with a space")
    parser.add_argument("--quantization", choices=["fp8"], help="of the engine's weights")
    parser.add_argument("--mode", choices=["http", "nccl"], default="http")
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 64], help="requests at once")
    parser.add_argument("--updates", type=int, default=5, help="that are measured, for each number of streams")
    return parser.parse_args(arguments)


class Streams:
    """Requests that are sent again and again, and when their tokens came."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self.times: list[float] = []
        """Of every token, whichever stream's."""
        self.of_stream: dict[int, list[float]] = defaultdict(list)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send requests in the block, once every stream has begun to answer."""
        async with aiohttp.ClientSession() as session:
            tasks = [asyncio.create_task(self._go_on(session, number)) for number in range(self._count)]
            try:
                while len(self.of_stream) < self._count:
                    await asyncio.sleep(0.05)
                    for task in tasks:
                        if task.done():
                            task.result()
                yield
                for task in tasks:
                    if task.done():
                        task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, session: aiohttp.ClientSession, number: int) -> None:
        for turn in itertools.count():
            prompt = [10 + (number * 31 + turn * 7 + place) % 200 for place in range(PROMPT)]
            body = {"model": "policy", "prompt": prompt, "max_tokens": ANSWER, "stream": True, "ignore_eos": True}
            async with session.post(f"{self._url}/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.content:
                    if line.startswith(b"data:"):
                        self.times.append(time.perf_counter())
                        self.of_stream[number].append(self.times[-1])

    def silence(self, began: float, ended: float) -> float:
        """The longest time between two tokens, of any streams, some of which lay between two moments."""
        return _longest(self.times, began, ended)

    def longest_wait(self, began: float, ended: float) -> float:
        """The same for the stream that waited longest."""
        return max((_longest(times, began, ended) for times in self.of_stream.values()), default=0.0)

    def usual_silence(self, began: float, ended: float) -> float:
        """The longest time between two tokens, of any streams, that both came between two moments."""
        return _longest([at for at in self.times if began <= at <= ended], began, ended)


def _longest(times: list[float], began: float, ended: float) -> float:
    pairs = itertools.pairwise(times)
    return max((after - before for before, after in pairs if after > began and before < ended), default=0.0)


@asynccontextmanager
async def engine(
    options: argparse.Namespace, model: ModelConfig, quantization: Quantization | None = None
) -> AsyncIterator[str]:
    """A real engine; its address."""
    port = free_port()
    extra = ["--gpu-memory-utilization", "0.4"] if options.device == "cuda" else []
    config = InferenceConfig(
        model=model,
        served_name="policy",
        port=port,
        device=options.device,
        quantization=quantization,
        extra_args=[*extra, *(one.strip() for one in options.engine_args)],
    )
    config.dump(options.out / "inference.json")
    variables = {names.ENV_RUN_UID: IDENTITY.uid, names.ENV_ADMIN_TOKEN: KEY}
    if options.device == "cuda" and torch.cuda.device_count() > 1:
        variables["CUDA_VISIBLE_DEVICES"] = "1"
    arguments = ["--config", str(options.out / "inference.json"), "--work", str(options.out / "work")]
    with (options.out / "engine.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(options.python, "-m", "echorl_vllm", *arguments),
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
            while not await _healthy(session, f"http://127.0.0.1:{port}/health"):
                if process.returncode is not None:
                    raise RuntimeError(f"the engine ended, see {options.out / 'engine.log'}")
                await asyncio.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@asynccontextmanager
async def pool_on(model: ModelConfig, updates: list[dict[str, Any]], *addresses: str) -> AsyncIterator[EnginePool]:
    """The run's pool of these engines."""
    config = OrchestratorConfig(
        run_dir="run",
        port=1,
        model=model,
        seed=0,
        max_steps=1,
        batch=BatchConfig(group_size=1, batch_size=1, max_staleness=1, seq_len=64, num_ranks=1),
        train=[],
        engines=EngineDiscovery(names=list(addresses), interval_s=0.5),
        weight_mode="http",
        checkpoint=CheckpointConfig(interval=1, keep_last=1),
        update_deadline_s=DEADLINE_S,
    )
    pool = EnginePool(config, IDENTITY, KEY, on_update=updates.append)
    await pool.start()
    forever = asyncio.create_task(pool.run_forever())
    try:
        yield pool
    finally:
        forever.cancel()
        await pool.close()


class Trainer:
    """What stands for a run's trainer: a policy that changes and is published."""

    def __init__(
        self,
        options: argparse.Namespace,
        model: ModelConfig,
        quantization: Quantization | None = None,
        mode: str = "http",
    ) -> None:
        self._ranks = connect(device=options.device)
        self._policy = start_policy(model, self._ranks, seed=1)
        health = Health(step_timeout_s=DEADLINE_S)
        server = Server(IDENTITY, 0, health, weights_key=weights_key(KEY))
        broadcaster = None
        if mode == "nccl":
            broadcaster = server.broadcasts = Broadcaster(self._ranks.device, health.watch, attempt=IDENTITY.attempt)
        store = server.weights = MemoryStore(1, f"http://127.0.0.1:{server.start('127.0.0.1', 0)}")
        probe = probe_ids(model, IDENTITY.uid, 16)
        self._publisher = Publisher(
            self._policy,
            self._ranks,
            IDENTITY,
            probe_token_ids=probe,
            store=store,
            watch=health.watch,
            engine_quantization=quantization,
            broadcaster=broadcaster,
        )
        self._versions = itertools.count()

    async def update(self, pool: EnginePool) -> tuple[float, float, float]:
        """Change the policy, publish it, wait until it is served: when that began, was visible, and was done."""
        change(self._policy)
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        publication = self._publisher.begin(next(self._versions))
        assert publication is not None  # noqa: S101 - this is rank 0
        announced = await asyncio.to_thread(publication.result)
        visible = time.perf_counter()
        pool.announce(announced)
        await pool.wait_served(announced.version, DEADLINE_S)
        return began, visible, time.perf_counter()


async def measure(options: argparse.Namespace) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Medians in seconds, by the number of streams; the records of all updates."""
    folder = options.out / "model"
    if not folder.exists():
        write_seeded_model(folder, SHAPES[options.shape], 1, tie=True, dtype=options.dtype)
    model = ModelConfig(path=str(folder), dtype=options.dtype, max_model_len=2048, renderer="plain")
    trainer = Trainer(options, model, options.quantization, options.mode)
    updates: list[dict[str, Any]] = []
    found: dict[str, dict[str, float]] = {}
    async with engine(options, model, options.quantization) as address, pool_on(model, updates, address) as pool:
        # The first is loaded and looked at, the second the first that is copied.
        for _ in range(2):
            await trainer.update(pool)
        for count in options.streams:
            streams = Streams(f"http://{address}", count)
            columns = defaultdict(list)
            async with streams.running():
                for _ in range(options.updates):
                    calm = time.perf_counter()
                    await asyncio.sleep(CALM_S)
                    began, visible, served = await trainer.update(pool)
                    columns["update to visible"].append(visible - began)
                    columns["update to served"].append(served - began)
                    for name in ("stage_s", "apply_s", "pause_s", "probe_s"):
                        columns[name].append(updates[-1][name])
                    columns["no token of any stream"].append(streams.silence(began, served))
                    columns["no token of any stream, without an update"].append(streams.usual_silence(calm, began))
                    columns["no token of one stream"].append(streams.longest_wait(began, served))
            found[f"{count} streams"] = {name: statistics.median(values) for name, values in columns.items()}
    disconnect()
    return found, updates


def table(found: dict[str, dict[str, float]]) -> str:
    """Milliseconds, as Markdown."""
    lines = [f"| ms | {' | '.join(found)} |", "|" + "---|" * (1 + len(found))]
    lines += [
        f"| {name} | " + " | ".join(f"{1e3 * column[name]:.3g}" for column in found.values()) + " |"
        for name in next(iter(found.values()))
    ]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = parse(arguments)
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    found, updates = asyncio.run(measure(options))
    error, broadcasts = max(one["max_probe_error"] for one in updates), sum(one["broadcast"] for one in updates)
    (options.out / "engine.json").write_text(
        json.dumps({"seconds": found, "max_probe_error": error, "broadcasts": broadcasts}, indent=2)
    )
    print(table(found))
    print(f"largest error of a probe: {error:.2g} nats; {broadcasts} of {len(updates)} updates came by broadcast")
    return 0


if __name__ == "__main__":
    end(main(sys.argv[1:]))
