"""The publication's benchmark at a size for a CPU: every part runs, and what arrives is what was published."""

import json

from benchmarks.publication.__main__ import FLOOR, main


def test_every_part_is_measured(tmp_path, capsys):
    options = ["--device", "cpu", "--shape", "tiny", "--dtype", "float32", "--repeats", "1", "--out", str(tmp_path)]
    assert main(options) == 0
    medians = json.loads((tmp_path / "publication.json").read_text())
    assert {"the loop stands still", "update to visible", "engine: fetch and check", "engine: replay"} <= medians.keys()
    assert (
        medians["of that without the probe's forward"]
        <= medians["the loop stands still"]
        < medians["update to visible"]
    )
    assert f"| {FLOOR} |" in capsys.readouterr().out
