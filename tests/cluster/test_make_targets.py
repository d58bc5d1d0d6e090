"""``make cluster-up`` and ``make cluster-down``, as a developer runs them."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echorl_testing.cluster.cluster import Cluster
from echorl_testing.cluster.layout import Layout

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def command(tmp_path: Path, control_plane: Cluster) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a subcommand with a folder of its own in place of ``.cluster``."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "echorl_testing.cluster", "--folder", str(tmp_path / "left"), *arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests" / "support")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    yield call
    call("down")


def test_up_can_be_repeated_and_down_leaves_nothing(
    command: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "left"
    first = command("up", "--no-node", "--kwok", "3")
    assert first.returncode == 0, first.stderr
    made = layout_of(first.stdout)
    assert (folder / "kubeconfig").stat().st_mode & 0o777 == 0o600
    kubectl = [str(folder / "bin" / "kubectl"), f"--kubeconfig={folder / 'kubeconfig'}"]
    assert capacities(kubectl) == {f"fake-gpu-{index}": "8" for index in range(3)}

    scheduler = json.loads((made.folder / "kube-scheduler.json").read_text())["pid"]
    os.kill(scheduler, 9)
    second = command("up", "--no-node", "--kwok", "1")
    assert second.returncode == 0, second.stderr
    assert layout_of(second.stdout) == made
    assert capacities(kubectl) == {"fake-gpu-0": "8"}
    assert json.loads((made.folder / "kube-scheduler.json").read_text())["pid"] != scheduler

    down = command("down")
    assert down.returncode == 0, down.stderr
    assert not made.folder.exists()
    assert not folder.exists()
    assert command("down").returncode == 0


def test_a_senseless_number_of_nodes_is_refused(command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    refused = command("up", "--kwok", "many")
    assert refused.returncode == 2
    assert "found 'many', accepted 0 to 5000" in refused.stderr


def layout_of(said: str) -> Layout:
    """Of the cluster that ``up`` named: other tests' clusters come and go on this machine meanwhile."""
    found = re.search(r"^cluster (\d+) is up", said, re.MULTILINE)
    assert found, said
    return Layout(int(found.group(1)))


def capacities(kubectl: list[str]) -> dict[str, str]:
    nodes = json.loads(subprocess.check_output([*kubectl, "get", "nodes", "-o", "json"], timeout=30))["items"]
    return {node["metadata"]["name"]: node["status"]["capacity"]["nvidia.com/gpu"] for node in nodes}
