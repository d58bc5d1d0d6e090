"""The measurement itself."""

import asyncio
import os
import tarfile
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from echorl_orchestrator.sandboxes.contract import Command, Sandbox, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.images import small_image
from echorl_testing.sandboxes.processes import alive, descendants

T = TypeVar("T")
_KEY = "one"
_WITHIN_S = 120.0


@dataclass
class Figures:
    """What was measured."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By what was done, of every time."""
    left_processes: int = 0
    left_files: int = 0
    """In the provider's folder, beside images and their locks."""

    async def timed(self, what: str, done: Awaitable[T]) -> T:
        """What ``done`` returns; its time is kept."""
        begun = time.perf_counter()
        found = await done
        self.seconds.setdefault(what, []).append(time.perf_counter() - begun)
        return found


async def measured(folder: Path, count: int, cold: int, at_once: int, files: int) -> Figures:
    """Measure in a folder of its own.

    Args:
        folder: empty; holds images and the provider's cache.
        count: sandboxes in sequence, of each kind of image.
        cold: starts with an image that nobody has unpacked.
        at_once: sandboxes of one start.
        files: of the image.
    """
    figures = Figures()
    before = descendants(os.getpid())
    image = await asyncio.to_thread(_image, folder, files)
    for number in range(cold):
        # A provider without a cache is the only one to which an image is new.
        await _one(figures, ProcessSandboxes(folder / f"cold-{number}"), str(image), "cold start, archive")
    sandboxes = ProcessSandboxes(folder / "warm")
    await _one(Figures(), sandboxes, str(image), "")
    for _ in range(count):
        await _one(figures, sandboxes, str(image), "warm start, archive")
    for _ in range(count):
        await _one(figures, sandboxes, "host", "start, host", commands=True)
    await _together(figures, sandboxes, str(image), at_once)
    await sandboxes.close()
    figures.left_processes = len(alive(descendants(os.getpid()) - before))
    figures.left_files = sum(path.parent.name != "images" for path in (folder / "warm").glob("*/*"))
    figures.left_files += sum(path.name != "images" for path in (folder / "warm").iterdir())
    return figures


async def _one(figures: Figures, sandboxes: ProcessSandboxes, image: str, what: str, *, commands: bool = False) -> None:
    sandbox = await figures.timed(what, sandboxes.create(SandboxSpec(image, "/task"), _KEY))
    if commands:
        await figures.timed("a command that does nothing", _run(sandbox))
        await sandbox.start(Command(["sh", "-c", "setsid sleep 1000 & sleep 1000"]), "long")
        await figures.timed("kill of a command", sandbox.kill("long"))
    await figures.timed("end", sandboxes.destroy(_KEY))


async def _run(sandbox: Sandbox) -> None:
    await sandbox.start(Command(["true"]), "nothing")
    ended = await sandbox.wait("nothing", _WITHIN_S)
    if ended is None or ended.code != 0:
        raise RuntimeError(f"a command that does nothing ended with {ended}")


async def _together(figures: Figures, sandboxes: ProcessSandboxes, image: str, number: int) -> None:
    what = f"warm start, {number} at once"
    spec = SandboxSpec(image, "/task")
    await asyncio.gather(*(figures.timed(what, sandboxes.create(spec, str(one))) for one in range(number)))


def _image(folder: Path, files: int) -> Path:
    tree = small_image(folder / "tree")
    (tree / "repository").mkdir()
    for number in range(files):
        (tree / "repository" / str(number)).write_bytes(number.to_bytes(8) * 512)
    archive = folder / "image.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        packed.add(tree, ".")
    return archive
