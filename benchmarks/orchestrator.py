"""What the orchestrator costs: requests to engines, long histories, the wire to the trainer.

    PYTHONPATH=tests/support .venv/bin/python -m benchmarks.orchestrator [--parts dispatch lag history wire]

dispatch   turns per CPU-second of the client, 256 episodes at once, one core: ours against the same with a turn
           journal, for turns that are not streamed (whole), a session's turns, aiohttp and msgspec alone, httpx, and
           the OpenAI client, by turns against one fake engine on the other core
lag        how late the event loop is while 1,024 episodes wait for an engine that takes two seconds a turn
history    seconds of a whole episode's turns without an engine, 20, 40 and 80 turns of equal length
wire       64 sequences of 8,192 tokens to a rank and back: ours against msgspec with lists of numbers
"""

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from echorl_core.arrays import pack, unpack
from echorl_core.config import SamplingConfig
from echorl_core.wire.batch import MicroBatch, RankBatch
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.gateway.session import GatewaySession
from echorl_orchestrator.gateway.turns import SessionSpec
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer

SIDES = ("dispatch", "journal", "whole", "session", "raw aiohttp", "httpx", "openai")
SAMPLED, FED = 200, 600
"""Tokens of a turn of the history part."""


@contextmanager
def engine(delay_s: float) -> Iterator[int]:
    """A fake engine on the last core; its port."""
    command = [sys.executable, "-m", "benchmarks.orchestrator_server", "--delay", str(delay_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: _pin(-1)) as process:  # noqa: PLW1509 - no threads here
        try:
            yield int((process.stdout or sys.stdin).readline())
        finally:
            process.kill()


def _pin(core: int) -> None:
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


def client(side: str, port: int, at_once: int, seconds: float) -> dict[str, float]:
    """One side in a process of its own on the first core."""
    command = [sys.executable, "-m", "benchmarks.orchestrator_clients", side, "--port", str(port)]
    command += ["--at-once", str(at_once), "--seconds", str(seconds)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120 + 4 * seconds, preexec_fn=lambda: _pin(0), check=False
    )
    if done.returncode:
        raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def dispatch(seconds: float, repeats: int, sides: Sequence[str]) -> None:
    """Turns per CPU-second, and ours as a ratio to each; medians over the repeats."""
    found: dict[str, list[float]] = {side: [] for side in sides}
    with engine(0.0) as port:
        for _ in range(repeats):
            for side in sides:
                found[side].append(client(side, port, 256, seconds)["turns_per_cpu_s"])
    medians = {side: statistics.median(values) for side, values in found.items()}
    for side, values in found.items():
        spread = f"{min(values):.0f} to {max(values):.0f}"
        # Of what ran one after the other: how fast the machine is changes from repeat to repeat.
        ratio = statistics.median(ours / one for ours, one in zip(found["dispatch"], values, strict=True))
        print(f"dispatch  {side:12} {medians[side]:7.0f} turns/CPU-s ({spread})  {ratio:.2f} x")


def lag(seconds: float) -> None:
    """Milliseconds by which the loop is late."""
    with engine(2.0) as port:
        for side in ("dispatch", "session"):
            one = client(side, port, 1024, seconds)
            text = "  ".join(f"{name} {one[name]:.1f}" for name in ("turns_per_s", "cpu", "lag_p50_ms", "lag_p99_ms"))
            print(f"lag       {side:12} {text}")


class _Instant:
    """Answers at once."""

    async def generate(self, *, prompt_ids: Sequence[int], **_: Any) -> Generation:
        ids = [ord("a")] * SAMPLED
        logprobs = [-0.5] * SAMPLED
        return Generation(ids, logprobs, "stop", version_low=3, version_high=3, engine="e", boot_id="b", seconds=0.0)


async def _episode(codec: CompactCodec, turns: int) -> int:
    """One episode; its tokens."""
    spec = SessionSpec("k", "e", codec, _Instant(), SamplingConfig(max_completion_tokens=SAMPLED), 1 << 20)
    session, messages = GatewaySession(spec), [{"role": "user", "content": "a" * FED}]
    for _ in range(turns):
        found = await session.turn(messages)
        messages += [found.message, {"role": "user", "content": "b" * FED}]
    (branch,) = session.history.branches
    return len(branch.ids)


def history(repeats: int) -> None:
    """Best of the repeats, for 20, 40 and 80 turns."""
    with tempfile.TemporaryDirectory() as folder:
        codec = CompactCodec(TextTokenizer(write_byte_tokenizer(Path(folder)), name="bytes"))
    best: dict[int, float] = {}
    for turns in (20, 40, 80):
        tokens = asyncio.run(_episode(codec, turns))
        best[turns] = min(_seconds(lambda turns=turns: asyncio.run(_episode(codec, turns))) for _ in range(repeats))
        rate = tokens / best[turns] / 1e6
        print(f"history   {turns} turns, {tokens} tokens: {1e3 * best[turns]:.1f} ms, {rate:.2f} Mtok/s")
    print(f"history   T(40)/T(20) {best[40] / best[20]:.2f}   T(80)/T(40) {best[80] / best[40]:.2f}")


def _seconds(do: Callable[[], Any], *, cold: bool = True) -> float:
    """Wall time of one call; ``cold``: after something else, a pass over all objects, had the processor's caches."""
    if cold:
        gc.collect()
    started = time.perf_counter()
    made = do()
    seconds = time.perf_counter() - started
    del made  # what it takes to free millions of numbers is not what is asked
    return seconds


class _Lists(msgspec.Struct):
    """The same columns as lists of Python numbers."""

    ints: list[list[list[int]]]
    floats: list[list[list[float]]]


def wire(repeats: int) -> None:
    """Best of the repeats, both ways."""
    generator, tokens = np.random.default_rng(0), 64 * 8192
    columns = {
        "token_ids": np.int32, "role": np.uint8, "logprobs": np.float32, "version_low": np.int32,
        "version_high": np.int32, "rl_weight": np.float32, "ce_weight": np.float32, "advantage": np.float32,
        "temperature": np.float32,
    }  # fmt: skip
    parts = []
    for number in range(16):
        arrays: dict[str, Any] = {
            name: (generator.random(4 * 8192) * 100).astype(kind) for name, kind in columns.items()
        }
        lengths = np.full(4, 8192, np.int32)
        names = [f"{number}/{one}" for one in range(4)]
        parts.append(MicroBatch(sample_ids=names, environments=["terminal"] * 4, lengths=lengths, **arrays))
    batch = RankBatch(
        run_uid="u", attempt=1, step=1, rank=0, num_ranks=1, denominators={"rl": 1.0}, checkpoint=False, last=False,
        micro_batches=parts,
    )  # fmt: skip
    ints, floats = ([name for name, kind in columns.items() if (kind is np.float32) == is_float] for is_float in (0, 1))
    lists = _Lists(
        [[getattr(part, name).tolist() for name in ints] for part in parts],
        [[getattr(part, name).tolist() for name in floats] for part in parts],
    )
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Lists)
    ours, theirs = pack(batch), encoder.encode(lists)
    sides: dict[str, Callable[[], Any]] = {
        "pack": lambda: pack(batch), "unpack": lambda: unpack(ours, RankBatch),
        "encode": lambda: encoder.encode(lists), "decode": lambda: decoder.decode(theirs),
    }  # fmt: skip
    print(f"wire      ours {len(ours) / tokens:.1f} B/token, lists {len(theirs) / tokens:.1f}")
    for title, cold in (("warm", False), ("cold caches", True)):
        best = {name: min(_seconds(do, cold=cold) for _ in range(repeats)) for name, do in sides.items()}
        rate = {name: tokens / seconds / 1e6 for name, seconds in best.items()}
        print(
            f"wire      {title}: ours {rate['pack']:.0f} Mtok/s out, {rate['unpack']:.0f} in; "
            f"lists {rate['encode']:.1f} out, {rate['decode']:.1f} in; "
            f"ratio {best['encode'] / best['pack']:.1f} x out, {best['decode'] / best['unpack']:.0f} x in"
        )


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("dispatch", "lag", "history", "wire")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seconds", type=float, default=8.0, help="of one side (default: 8)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: 3)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="of dispatch; needs its first")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    if "dispatch" in options.parts:
        dispatch(options.seconds, options.repeats, options.sides)
    if "lag" in options.parts:
        lag(options.seconds)
    if "history" in options.parts:
        history(options.repeats)
    if "wire" in options.parts:
        wire(options.repeats)


if __name__ == "__main__":
    main()
