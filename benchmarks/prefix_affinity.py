"""What it is worth that an episode's turns go to one engine: hits in the engines' prefix caches, and time.

    PYTHONPATH=core:operator:orchestrator:trainer:tests/support python3 -m benchmarks.prefix_affinity --out DIR

Two real engines, and the run's pool before them. Episodes of one group begin with the same prompt; every turn's prompt
is the one before it, what was sampled, and an environment's tokens. Sides, in turn and each with prompts of its own:

    episode     as in a run: an episode sticks to one engine
    nothing     every turn goes to the engine with the least to do
    group       a whole group sticks to one engine
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp

from benchmarks.publication.engine import Trainer, engine, pool_on
from echorl_core.config import ModelConfig, SamplingConfig
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.engines.engine_metrics import parse
from echorl_trainer.parallel import disconnect
from echorl_trainer.seeded import SHAPES, SeededShape, write_seeded_model

SIDES = ("episode", "nothing", "group")
SHAPE = SeededShape(
    hidden_size=512, intermediate_size=1536, num_layers=8, num_heads=8, num_kv_heads=4, head_dim=64, sliding_window=8
)
"""25 M parameters: a turn's prompt is work, and a turn still ends within a second on a CPU."""


def options_of(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results, the model and the engines' files")
    parser.add_argument("--shape", choices=["25m", *sorted(SHAPES)], default="25m")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--python", default=".venv-inference/bin/python", help="of the environment that holds vLLM")
    parser.add_argument("--engine-args", nargs="*", default=[], help="for vLLM; beginning with a space")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a group's first prompt")
    parser.add_argument("--fed", type=int, default=128, help="tokens that the environment adds to each turn")
    parser.add_argument("--sampled", type=int, default=32, help="tokens of each turn")
    parser.add_argument("--repeats", type=int, default=3)
    found = parser.parse_args(arguments)
    found.python = str(Path(found.python).absolute()) if "/" in found.python else found.python
    return found


async def play(pool: EnginePool, options: argparse.Namespace, side: str, seed: int) -> float:
    """Seconds for all episodes of a side, all at once."""
    drawn = random.Random(f"{side} {seed}")
    sampling = SamplingConfig(temperature=1.0)
    prompts = [[drawn.randrange(10, 240) for _ in range(options.prompt)] for _ in range(options.groups)]

    async def episode(group: int, member: int, feed: random.Random) -> None:
        name = f"{side}-{seed}-{group}" + ("" if side == "group" else f"-{member}")
        ids = list(prompts[group])
        for _ in range(options.turns):
            if side == "nothing":
                pool.release(name)
            turn = await pool.generate(
                episode=name, prompt_ids=ids, sampling=sampling, max_tokens=options.sampled, stop_ids=[]
            )
            ids += [*turn.token_ids, *(feed.randrange(10, 240) for _ in range(options.fed))]
        if side != "group":
            pool.release(name)

    began = time.perf_counter()
    members = [(group, member) for group in range(options.groups) for member in range(options.group_size)]
    await asyncio.gather(*(episode(*one, random.Random(f"{side} {seed} {one}")) for one in members))
    seconds = time.perf_counter() - began
    for group in range(options.groups):
        pool.release(f"{side}-{seed}-{group}")
    return seconds


async def counted(addresses: list[str]) -> tuple[float, float]:
    """Prompt tokens that all engines have looked up in their caches, and those found there."""
    asked = found = 0.0
    async with aiohttp.ClientSession() as session:
        for address in addresses:
            async with session.get(f"http://{address}/metrics") as answer:
                numbers = parse(await answer.text())
            asked += numbers["prefix_queries_total"]
            found += numbers["prefix_hits_total"]
    return asked, found


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """By side: the share of prompt tokens that caches held, and seconds; medians."""
    folder = options.out / "model"
    if not folder.exists():
        shape = SHAPE if options.shape == "25m" else SHAPES[options.shape]
        write_seeded_model(folder, shape, 1, tie=True, dtype=options.dtype)
    model = ModelConfig(path=str(folder), dtype=options.dtype, max_model_len=2048, renderer="plain")
    trainer = Trainer(options, model)
    rows: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    async with AsyncExitStack() as stack:
        addresses = []
        for number in range(2):
            own = argparse.Namespace(**{**vars(options), "out": options.out / f"engine{number}"})
            own.out.mkdir(parents=True, exist_ok=True)
            addresses.append(await stack.enter_async_context(engine(own, model)))
        pool = await stack.enter_async_context(pool_on(model, [], *addresses))
        await trainer.update(pool)
        await play(pool, options, "episode", -1)  # Kernels are warm then.
        for repeat in range(options.repeats):
            for side in SIDES:
                asked, found = await counted(addresses)
                seconds = await play(pool, options, side, repeat)
                asked_after, found_after = await counted(addresses)
                rows[side].append(((found_after - found) / (asked_after - asked), seconds))
    disconnect()
    return {
        side: {"hit rate": statistics.median(hit for hit, _ in runs), "seconds": statistics.median(s for _, s in runs)}
        for side, runs in rows.items()
    }


def main(arguments: list[str]) -> int:
    """Run the benchmark."""
    options = options_of(arguments)
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(measure(options))
    (options.out / "prefix_affinity.json").write_text(json.dumps(found, indent=2))
    for side, row in found.items():
        ratio = row["seconds"] / found["episode"]["seconds"]
        print(f"prefixes  {side:8} hit rate {row['hit rate']:.3f}  {row['seconds']:7.2f} s, {ratio:.2f} of episode's")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
