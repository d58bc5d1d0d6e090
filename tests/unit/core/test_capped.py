import os
from pathlib import Path

import pytest

from echorl_core.capped import lines_capped, read_capped


def test_what_has_no_end_is_not_read_to_it() -> None:
    with pytest.raises(OSError, match="more than 1,000 bytes"):
        read_capped(Path("/dev/zero"), 1000)
    with pytest.raises(OSError, match="a line of more than 1,000 bytes"):
        list(lines_capped(Path("/dev/zero"), 1000))


def test_a_pipe_is_read_to_its_end_and_without_a_writer_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_capped(tmp_path / "pipe", 10) == b""
    assert list(lines_capped(tmp_path / "pipe", 10)) == []
    reading, writing = os.pipe()
    os.write(writing, b"a\nb")
    os.close(writing)
    assert list(lines_capped(Path(f"/dev/fd/{reading}"), 10)) == [b"a\n", b"b"]
    os.close(reading)


def test_the_limit_itself_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_capped(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_capped(tmp_path / "file", 3)
