"""The publication's benchmark at a size for a CPU: every part runs, and what arrives is what was published."""

import json

from benchmarks.publication import deltas
from benchmarks.publication.__main__ import FLOOR, main
from benchmarks.publication.loop import ALONE, SIDES


def test_every_part_is_measured(tmp_path, capsys):
    size = ["--shape", "tiny", "--dtype", "float32", "--repeats", "1", "--tokens", "64", "--micro-batches", "2"]
    assert main(["--device", "cpu", *size, "--out", str(tmp_path)]) == 0
    medians = json.loads((tmp_path / "publication.json").read_text())
    assert {"update to visible", "engine: fetch and check", "engine: replay", ALONE} <= medians.keys()
    assert medians["the call that begins it"] < medians["update to visible"]
    for side in SIDES:
        assert f"the loop stands still, {side}" in medians
        assert medians[f"update to visible, {side}"] > 0
    assert f"| {FLOOR} |" in capsys.readouterr().out


def test_a_step_of_adamw_at_a_low_rate_is_a_small_part_of_the_weights(tmp_path, capsys):
    assert deltas.main(["--steps", "4", "--tokens", "256", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "deltas.json").read_text())
    assert [(row["version"], row["delta"]) for row in rows] == [(version, "used") for version in range(1, 5)]
    # The first step moves every weight by the whole rate, later ones by what a mean of gradients is of their size.
    assert rows[0]["received_bytes"] * 10 < rows[0]["whole_bytes"]
    assert rows[-1]["received_bytes"] * 20 < rows[-1]["whole_bytes"]
    assert "| 3 to 4, median |" in capsys.readouterr().out
