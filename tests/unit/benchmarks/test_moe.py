"""The benchmark of mixtures of experts at a size for a CPU: both models train on both sides, and shares are whole."""

import json

import pytest

from benchmarks.moe import DENSE, MIXTURE, main
from benchmarks.step.__main__ import PEER
from echorl_testing.campaign import of_benchmark


@of_benchmark("mixture")
def test_a_mixture_and_a_dense_model_train_the_same_documents(tmp_path, capsys):
    shape = ["--shape", "tiny", "--tokens", "256", "--micro-batches", "1", "--repeats", "1"]
    assert main(["--device", "cpu", "--eager", "--out", str(tmp_path), *shape]) == 0
    rows = {
        (row["family"], row["side"]): row for row in map(json.loads, (tmp_path / "moe.jsonl").read_text().splitlines())
    }
    assert set(rows) == {(family, side) for family in (DENSE, MIXTURE) for side in ("ours", PEER)}
    mixture, dense = rows[MIXTURE, "ours"], rows[DENSE, "ours"]
    assert dense["over_dense"] == 1.0
    assert mixture["over_dense"] == pytest.approx(mixture["share_of_product"] / dense["share_of_product"])
    assert f"| {MIXTURE} | {PEER} |" in capsys.readouterr().out
