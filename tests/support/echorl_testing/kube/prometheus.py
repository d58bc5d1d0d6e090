"""A real Prometheus, and promtool, for tests; from the operating system's package."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from echorl_testing.cluster.errors import ClusterError
from echorl_testing.cluster.packages import ensure_prometheus, find
from echorl_testing.ports import free_ports
from tools.dashboards.answers import Prometheus

_READY_S = 60.0
_GRACE_S = 20.0


def program(name: str) -> Path:
    """``prometheus`` or ``promtool``; skips the test where it is neither there nor can be installed."""
    try:
        return find(name)
    except ClusterError:
        pass
    if os.geteuid() != 0:
        pytest.skip(f"{name} is not installed, and only root can install it")
    ensure_prometheus()
    return find(name)


@dataclass(frozen=True)
class Server(Prometheus):
    """One that scrapes what ``targets`` names."""

    targets: Path

    def scrape(self, groups: Iterable[tuple[Iterable[str], Mapping[str, str]]]) -> None:
        """Scrape these addresses from now on, each group with its labels."""
        found = [{"targets": sorted(addresses), "labels": dict(labels)} for addresses, labels in groups]
        text = json.dumps(sorted(found, key=str))
        if not self.targets.exists() or self.targets.read_text() != text:
            # Prometheus looks at the file when it is renamed.
            fresh = self.targets.with_suffix(".new")
            fresh.write_text(text)
            fresh.rename(self.targets)


@contextmanager
def prometheus(folder: Path, interval: str = "1s") -> Iterator[Server]:
    """Scrapes every ``interval``; ended afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    binary, (port,) = program("prometheus"), free_ports(1)
    targets, config = folder / "targets.json", folder / "prometheus.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": interval, "scrape_timeout": interval},
                "scrape_configs": [
                    {
                        "job_name": "echorl",
                        "honor_labels": True,
                        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "5s"}],
                    }
                ],
            }
        )
    )
    command = [
        binary,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _until_ready(url, process, folder)
        yield Server(url, targets)
    finally:
        process.terminate()
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(url: str, process: "subprocess.Popen[bytes]", folder: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            log = (folder / "prometheus.log").read_text(errors="replace")
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"Prometheus is not ready: {log[-2000:]}") from None
            time.sleep(0.1)
