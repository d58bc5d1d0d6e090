"""The benchmark of recovery with one loss of each kind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from echorl_testing import campaign
from echorl_testing.engines.engine import REPOSITORY

pytestmark = [pytest.mark.vllm, pytest.mark.faults, campaign.ALL, pytest.mark.timeout(1200)]


KINDS = [["orchestrator", "rank", "rank-orchestrator"], ["engine", "rank-volume"]]


@pytest.mark.parametrize("kinds", KINDS, ids=["in place", "anew"])
def test_a_run_is_back_after_one_loss_of_each_kind(tmp_path: Path, kinds: list[str]) -> None:
    rooms = ["core", "operator", "orchestrator", "trainer", "tests/support", "."]
    options = ["--out", tmp_path, "--losses", "1", "--kinds", *kinds]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.recovery", *options],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": ":".join(str(REPOSITORY / room) for room in rooms)},
        check=True,
        timeout=1100,
    )
    found = {row["lost"]: row for row in map(json.loads, (tmp_path / "recovery.jsonl").read_text().splitlines())}
    assert set(found) == set(kinds)
    for lost, row in found.items():
        assert 0 <= row["next_s"] <= row["back_s"]
        assert 0 < row["successor_s"] <= row["back_s"]
        assert row["cpu_s"] > 0
        assert row["redone"] == 0 or lost == "rank-volume"
    if "engine" in found:
        assert found["engine"]["again"] >= 0
