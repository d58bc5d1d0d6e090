"""The head's benchmark at a size for a CPU, where ours and its former self are the same code."""

import json

import pytest

from benchmarks.head.__main__ import main


@pytest.mark.parametrize(("dtype", "logprob", "gradient"), [("float32", 2e-5, 2e-5), ("bfloat16", 2e-4, 1e-2)])
def test_sides_agree_with_float64(tmp_path, capsys, dtype, logprob, gradient):
    shape = ["--widths", "32", "--rows", "96", "--vocabulary", "500", "--accuracy-rows", "64"]
    options = ["--device", "cpu", "--dtype", dtype, "--repeats", "1", "--out", str(tmp_path)]
    assert main([*options, *shape]) == 0
    rows = {row["side"]: row for row in map(json.loads, (tmp_path / "head.jsonl").read_text().splitlines())}
    assert "| 32 | 96 | ours |" in capsys.readouterr().out
    assert rows["floor"]["over_floor"] == 1.0
    for side in ("ours", "ours, by sequence", "ours, former"):
        assert rows[side]["logprob"] < logprob
        assert rows[side]["entropy"] < 1e-4
        assert rows[side]["grad_hidden"] < gradient
        assert rows[side]["grad_head"] < gradient
    assert "logprob" in rows["TRL's formula, all logits"]
