"""The step's benchmark at a size for a CPU: both sides train, and what is told of them is whole."""

import json

import pytest

from benchmarks.step.__main__ import PEER, main


def test_both_sides_train_the_same_documents(tmp_path, capsys):
    shape = ["--shape", "tiny", "--tokens", "256", "--micro-batches", "1", "--repeats", "1"]
    options = ["--device", "cpu", "--eager", "--sides", PEER, "ours", "--out", str(tmp_path)]
    assert main([*options, *shape]) == 0
    peer, ours = map(json.loads, (tmp_path / "step.jsonl").read_text().splitlines())
    assert peer["over_peer"] == 1.0
    assert ours["over_peer"] == peer["step_s"] / ours["step_s"]
    assert ours["tokens_per_s"] * ours["step_s"] == pytest.approx(256)
    assert f"| {PEER} |" in capsys.readouterr().out
