"""What a worker's download takes beside a loop that wants Python's lock, and what it takes to have it on the device.

    PYTHONPATH=core:trainer python3 -m benchmarks.publication.fetch [--bytes 1192000000] [--repeats 5] [--folder DIR]

A publisher in a process of its own sends a file from memory over loopback: to our download and to the standard
library's reads; then to a download after which all tensors are checked and copied, and to one beside which they are,
into a fresh file and over one that is there. The loop computes in Python for half of the time, 4 ms of 8, as an
engine's loop does that streams to many requests; without it the engine is idle.
"""

import argparse
import asyncio
import http.client
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from aiohttp import web
from xxhash import xxh3_128_hexdigest

from echorl_core.wire.weights import TensorInfo, WeightFile, WeightManifest
from echorl_trainer.host_files import file_layouts
from echorl_vllm.arrivals import Arrivals
from echorl_vllm.downloads import Limits, download
from echorl_vllm.recording import Copies, Piece
from echorl_vllm.validation import check_digests, open_tensors

HELD_S = 0.004
FILE = "model.safetensors"
DEADLINE_S = 120.0


def _ours(url: str, target: Path, size: int) -> None:
    download(url, target, size, {}, Limits(time.monotonic() + DEADLINE_S))


def _standard(url: str, target: Path, _: int) -> None:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=DEADLINE_S)) as connection, target.open("wb") as file:
        connection.request("GET", parts.path)
        shutil.copyfileobj(connection.getresponse(), file, 4 << 20)


SIDES: dict[str, Callable[[str, Path, int], None]] = {"ours": _ours, "standard": _standard}
IN_TURN, BESIDE, AGAIN = "then checked and copied", "checked and copied beside", "the same, over a file"


@dataclass(frozen=True)
class Version:
    """What is published, and where a worker's device takes it."""

    manifest: WeightManifest
    copies: Copies

    def bring(self, side: str, url: str, target: Path, size: int) -> None:
        """Have it on the device."""
        limits = Limits(time.monotonic() + DEADLINE_S)
        if side == IN_TURN:
            download(url, target, size, {}, limits)
            tensors = open_tensors(target.parent, self.manifest)
            check_digests(tensors, self.manifest)
            self.copies.stage(tensors)
            return
        with Arrivals(self.manifest, lambda name, tensor: self.copies.stage({name: tensor})) as arrivals:
            download(url, target, size, {}, limits, arrived=arrivals.of(target))
            arrivals.wait(lambda: limits.check("checking"))


def published(path: Path, size: int, device: torch.device) -> Version:
    """Write a file of about ``size`` bytes, with tensors as models have them: one large, many, and many tiny ones."""
    elements = size // 2
    shapes = {f"layer.{number:03}": (elements // 4 * 3 // 200,) for number in range(200)}
    shapes |= {f"norm.{number:03}": (1024,) for number in range(100)} | {"embedding": (elements // 4,)}
    (layout,) = file_layouts(shapes, torch.bfloat16, single_name=FILE, file_bytes=sys.maxsize)
    block = np.random.default_rng(1).integers(0, 255, layout.size, np.uint8)
    block[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
    block.tofile(path)
    tensors = {
        name: TensorInfo(
            dtype="BF16", shape=list(shapes[name]), file=FILE, xxh3=xxh3_128_hexdigest(block[slice(*place)])
        )
        for name, place in layout.places.items()
    }
    files = [WeightFile(name=FILE, size=layout.size)]
    manifest = WeightManifest(run_uid="r", attempt=1, version=1, kind="full", files=files, tensors=tensors)
    targets = {name: torch.empty(shape, dtype=torch.bfloat16, device=device) for name, shape in shapes.items()}
    return Version(manifest, Copies([Piece(name, 0, (1,), target) for name, target in targets.items()]))


@contextmanager
def _loop(ended: threading.Event) -> Iterator[None]:
    def run() -> None:
        while not ended.wait(HELD_S):
            until = time.perf_counter() + HELD_S
            while time.perf_counter() < until:
                pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def serve(path: Path) -> None:
    """The publisher; prints its port."""

    async def answer(_: web.Request) -> web.FileResponse:
        return web.FileResponse(path)

    application = web.Application()
    application.router.add_get("/file", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def measure(url: str, folder: Path, version: Version, repeats: int) -> dict[str, float]:
    """Median seconds of each side in turn, idle and beside the loop."""
    (size,) = (file.size for file in version.manifest.files)
    sides: dict[str, Callable[[str, Path, int], None]] = dict(SIDES)
    sides |= {side: partial(version.bring, side) for side in (IN_TURN, BESIDE, AGAIN)}
    fresh, again = folder / "fresh", folder / "again"
    for one in (fresh, again):
        one.mkdir()
    _ours(url, again / FILE, size)
    taken: dict[str, list[float]] = {}
    for busy in (False, True):
        ended = threading.Event()
        if not busy:
            ended.set()
        with _loop(ended):
            for _ in range(repeats):
                for name, bring in sides.items():
                    target = (again if name == AGAIN else fresh) / FILE
                    began = time.perf_counter()
                    bring(url, target, size)
                    taken.setdefault(f"{name}, {'beside a loop' if busy else 'idle'}", []).append(
                        time.perf_counter() - began
                    )
                    (fresh / FILE).unlink(missing_ok=True)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Measure, and print seconds and ratios."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2])))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bytes", type=int, default=1_192_000_000, help="(default: of 0.6 B parameters in bfloat16)")
    parser.add_argument("--repeats", type=int, default=5, help="(default: 5)")
    parser.add_argument("--folder", type=Path, help="where files are brought to (default: the system's for temporary)")
    parser.add_argument("--device", default="cpu", help="where tensors are copied to (default: cpu)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source = Path(name) / "source"
        version = published(source, options.bytes, torch.device(options.device))
        command = [sys.executable, "-m", "benchmarks.publication.fetch", "serve", str(source)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            try:
                port = int((publisher.stdout and publisher.stdout.readline()) or 0)
                seconds = measure(f"http://127.0.0.1:{port}/file", Path(name), version, options.repeats)
            finally:
                publisher.kill()
    for name, median in seconds.items():
        print(f"fetch   {name:42} {1e3 * median:8.1f} ms")
    for state in ("idle", "beside a loop"):
        for side, other in (("ours", "standard"), (BESIDE, IN_TURN), (AGAIN, IN_TURN)):
            ratio = seconds[f"{side}, {state}"] / seconds[f"{other}, {state}"]
            print(f"fetch   {side} ÷ {other}, {state:13} {ratio:6.2f}")


if __name__ == "__main__":
    main()
