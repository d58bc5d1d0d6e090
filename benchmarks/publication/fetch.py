"""What a worker's download takes beside a loop that wants Python's lock: ours, and the standard library's reads.

    PYTHONPATH=core:trainer python3 -m benchmarks.publication.fetch [--bytes 1192000000] [--repeats 5] [--folder DIR]

A publisher in a process of its own sends a file from memory over loopback. The loop computes in Python for half of the
time, 4 ms of 8, as an engine's loop does that streams to many requests; without it the engine is idle.
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
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from echorl_vllm.downloads import Limits, download

HELD_S = 0.004
DEADLINE_S = 120.0


def _ours(url: str, target: Path, size: int) -> None:
    download(url, target, size, {}, Limits(time.monotonic() + DEADLINE_S))


def _standard(url: str, target: Path, _: int) -> None:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=DEADLINE_S)) as connection, target.open("wb") as file:
        connection.request("GET", parts.path)
        shutil.copyfileobj(connection.getresponse(), file, 4 << 20)


SIDES: dict[str, Callable[[str, Path, int], None]] = {"ours": _ours, "standard": _standard}


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


def measure(url: str, folder: Path, size: int, repeats: int) -> dict[str, float]:
    """Median seconds of each side in turn, idle and beside the loop."""
    taken: dict[str, list[float]] = {}
    for busy in (False, True):
        ended = threading.Event()
        if not busy:
            ended.set()
        with _loop(ended):
            for _ in range(repeats):
                for name, bring in SIDES.items():
                    target = folder / name
                    began = time.perf_counter()
                    bring(url, target, size)
                    taken.setdefault(f"{name}, {'beside a loop' if busy else 'idle'}", []).append(
                        time.perf_counter() - began
                    )
                    target.unlink()
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Measure, and print seconds and ratios."""
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(Path(sys.argv[2])))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--bytes", type=int, default=1_192_000_000, help="(default: of 0.6 B parameters in bfloat16)")
    parser.add_argument("--repeats", type=int, default=5, help="(default: 5)")
    parser.add_argument("--folder", type=Path, help="where files are brought to (default: the system's for temporary)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        source = Path(name) / "source"
        with source.open("wb") as file:
            file.truncate(options.bytes)
        command = [sys.executable, "-m", "benchmarks.publication.fetch", "serve", str(source)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as publisher:
            try:
                port = int((publisher.stdout and publisher.stdout.readline()) or 0)
                seconds = measure(f"http://127.0.0.1:{port}/file", Path(name), options.bytes, options.repeats)
            finally:
                publisher.kill()
    for name, median in seconds.items():
        print(f"fetch   {name:24} {1e3 * median:8.1f} ms")
    for state in ("idle", "beside a loop"):
        print(f"fetch   ours ÷ standard, {state:13} {seconds[f'ours, {state}'] / seconds[f'standard, {state}']:6.2f}")


if __name__ == "__main__":
    main()
