"""The benchmark of Python's lock runs."""

import pytest

from benchmarks import python_lock


def test_each_interval_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, least in (("STEPS", 1), ("TENSORS", 2), ("ELEMENTS", 100)):
        monkeypatch.setattr(python_lock, name, least)
    assert python_lock.main(["--switch-s", "0.005", "0.001", "--repeats", "1"]) == 0
    names = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()[2:]]
    assert names == ["5 ms, by default", "1 ms"]
