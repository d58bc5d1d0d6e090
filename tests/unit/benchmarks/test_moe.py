"""The benchmark of mixtures of experts at a size for a CPU: both models train on both sides, and shares are whole."""

import json

import pytest

from benchmarks.moe import DENSE, MIXTURE, main
from benchmarks.step.__main__ import PEER
from echorl_testing.campaign import of_benchmark


@of_benchmark("mixture")
def test_a_mixture_and_a_dense_model_train_the_same_documents(tmp_path, capsys):
    shape = ["--shape", "tiny", "--tokens", "256", "--micro-batches", "1", "2", "--repeats", "1"]
    assert main(["--device", "cpu", "--eager", "--out", str(tmp_path), *shape]) == 0
    read = [json.loads(line) for line in (tmp_path / "moe.jsonl").read_text().splitlines()]
    rows = {(row["family"], row["side"], row["micro_batches"]): row for row in read}
    assert set(rows) == {(family, side, n) for family in (DENSE, MIXTURE) for side in ("ours", PEER) for n in (1, 2)}
    for count in (1, 2):
        mixture, dense = rows[MIXTURE, "ours", count], rows[DENSE, "ours", count]
        assert dense["over_dense"] == 1.0
        assert mixture["over_dense"] == pytest.approx(mixture["share_of_product"] / dense["share_of_product"])
        assert mixture["tokens_per_s"] == pytest.approx(256 * count / mixture["step_s"])
    assert f"| {MIXTURE} | {PEER} | 2 |" in capsys.readouterr().out
