"""The rehearsal of a real model at a size for a CPU: two ranks read, train and publish it."""

import json

from benchmarks.rehearsal import main
from echorl_testing.campaign import of_benchmark


@of_benchmark("rehearsal")
def test_two_ranks_read_train_and_publish(tmp_path, capsys):
    size = ["--shape", "tiny", "--device", "cpu", "--tokens", "128", "--steps", "2", "--moments", "int8"]
    assert main(["--out", str(tmp_path), *size]) == 0
    found = json.loads((tmp_path / "rehearsal.json").read_text())
    assert list(found["seconds"])[-1] == "version 2: until it is visible"
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert len(found["host_gib"]) == 2
    assert "parameters, written in" in capsys.readouterr().out
