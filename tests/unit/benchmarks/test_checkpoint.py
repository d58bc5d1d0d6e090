"""The benchmark of checkpoints at a size for a CPU: the state is written beside steps, and every part has its time."""

import json

from torch.distributed.checkpoint.filesystem import FileSystemReader

from benchmarks.checkpoint import FLOOR, MEMORY_STALL, MEMORY_STEP, STALL, STEP, WRITE, main


def test_the_state_is_copied_and_written(tmp_path, capsys):
    shape = ["--shape", "tiny", "--tokens", "256", "--micro-batches", "1", "--repeats", "1"]
    assert main(["--device", "cpu", "--eager", "--out", str(tmp_path), *shape]) == 0
    found = json.loads((tmp_path / "checkpoint.json").read_text())
    assert found["seconds"].keys() >= {FLOOR, STALL, WRITE, STEP, MEMORY_STALL, MEMORY_STEP}
    saved = FileSystemReader(tmp_path / "state").read_metadata().state_dict_metadata
    weights = sum(one.size.numel() for name, one in saved.items() if name.startswith("model."))
    assert found["bytes"] >= 12 * weights  # float32: weights and two moments
    assert f"| {STALL} | " in capsys.readouterr().out
