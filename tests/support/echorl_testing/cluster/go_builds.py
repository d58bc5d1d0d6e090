"""Builds programs with Go, and says how far it is: the first build of Kubernetes takes half an hour."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from echorl_testing.cluster.errors import ClusterError

DEADLINE_S = 3600.0
SAY_EVERY_S = 30.0
ENV_DROP_CACHE = "ECHORL_DROP_BUILD_CACHE"
"""``1``: nothing that Go compiles is kept, but for the programs."""
_LAST_LINES = 25

Say = Callable[[str], None]


def build(
    tool: Path,
    folder: Path,
    programs: Mapping[str, str],
    *,
    flags: str,
    to: Path,
    say: Say,
    say_every_s: float = SAY_EVERY_S,
) -> None:
    """Build programs of a module.

    Args:
        tool: Go.
        folder: of the module.
        programs: packages by the name of their program.
        flags: for the linker, besides those that leave symbols out.
        to: the folder that gets the programs.
        say: is told how far it is.
        say_every_s: how often, in seconds.

    Raises:
        ClusterError: it failed, with the end of what the compiler said, or took too long.
    """
    with _environment() as environ:
        go = _Go(tool, folder, environ, say, say_every_s)
        for program, package in programs.items():
            found = go.run(["list", "-deps", package], f"fetching what {program} is built from: {{}} lines")
            total = sum(not line.startswith("go: ") for line in found)
            # Two compilers at a time stay below 8 GB; go.sum pins what is downloaded. -v tells each package.
            options = ["-v", "-p", "2", "-mod=readonly", "-trimpath", "-ldflags", f"-s -w {flags}".strip()]
            command = ["build", *options, "-o", str(to / program), package]
            go.run(command, f"building {program}: {{}} of at most {total} packages")


def disk(environ: Mapping[str, str] = os.environ) -> str:
    """Room where Go compiles, in words."""
    place = Path(environ.get("GOCACHE") or Path.home())
    free = shutil.disk_usage(place if place.exists() else Path.home()).free
    return f"{free / 2**30:.0f} GiB of disk are free"


@contextmanager
def _environment() -> Iterator[dict[str, str]]:
    own = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}
    if os.environ.get(ENV_DROP_CACHE) != "1":
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="echorl-go-") as folder:
        yield {**own, "GOCACHE": folder}


class _Go:
    """Runs Go in a module's folder."""

    def __init__(self, tool: Path, folder: Path, environ: dict[str, str], say: Say, say_every_s: float) -> None:
        self._tool, self._folder, self._environ = tool, folder, environ
        self._say, self._say_every_s = say, say_every_s

    def run(self, arguments: list[str], told: str) -> list[str]:
        """Run it to its end; the lines that it printed. ``told``: what is said of how many there are so far."""
        began, lines = time.monotonic(), list[str]()
        process = subprocess.Popen(
            ["nice", "-n", "10", str(self._tool), *arguments],
            cwd=self._folder,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        reader = threading.Thread(target=_read, args=(process, lines))
        reader.start()
        try:
            while not _ends(process, self._say_every_s):
                waited = time.monotonic() - began
                if waited > DEADLINE_S:
                    raise ClusterError(f"go {arguments[0]} in {self._folder}: no end after {DEADLINE_S:g} s")
                self._say(f"{told.format(len(lines))} after {waited / 60:.1f} min")
        finally:
            process.kill()
            process.wait()
            reader.join()
        if process.returncode:
            said = "\n".join(lines[-_LAST_LINES:])
            raise ClusterError(f"go {arguments[0]} in {self._folder} failed:\n{said}")
        return lines


def _read(process: "subprocess.Popen[str]", lines: list[str]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.append(line.rstrip())


def _ends(process: "subprocess.Popen[str]", within_s: float) -> bool:
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return False
    return True
