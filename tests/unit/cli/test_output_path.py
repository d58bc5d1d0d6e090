"""What a command may replace: a plain file, and nothing else."""

import os
import socket
import stat

import pytest

from echorl_cli.output_path import OutputRefused, check_output_file, check_output_folder, write_output


def link(path):
    (path.parent / "kept").write_text("kept")
    path.symlink_to(path.parent / "kept")


def link_to_nothing(path):
    path.symlink_to(path.parent / "nowhere")


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def device(path):
    if os.geteuid():
        pytest.skip("only root makes device nodes")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))


OTHERS = {
    "a link": link,
    "a link, dangling": link_to_nothing,
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a socket": a_socket,
    "a device": device,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_plain_file_stays_as_it_is(kind, tmp_path):
    path = tmp_path / "out"
    OTHERS[kind](path)
    before = path.lstat()
    with pytest.raises(OutputRefused) as caught:
        write_output(path, b"new", "--out")
    found = kind.partition(",")[0]
    assert str(caught.value) == f"--out: found {found}, {path}; accepted: a new file, or a plain file to replace"
    assert (path.lstat().st_ino, path.lstat().st_rdev) == (before.st_ino, before.st_rdev)
    if kind == "a link":
        assert path.read_text() == "kept"


def test_a_plain_file_is_replaced_and_a_new_one_made_with_its_folders(tmp_path):
    for path in (tmp_path / "old", tmp_path / "some" / "where" / "new"):
        if path.name == "old":
            path.write_text("old")
        write_output(path, b"new", "--out")
        assert path.read_bytes() == b"new"


def test_the_empty_name_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputRefused, match="--out: found a folder, "):
        write_output(type(tmp_path)(""), b"new", "--out")


def test_a_file_that_is_read_is_not_replaced(tmp_path):
    path = tmp_path / "in.toml"
    path.write_text("a = 1")
    with pytest.raises(OutputRefused, match="which the command reads; accepted: another file"):
        check_output_file(tmp_path / "." / "in.toml", "--out", [tmp_path / "not-there", path])


@pytest.mark.parametrize("name", ["loop/file", "x" * 300, "file/below"])
def test_what_the_system_refuses_is_one_line(name, tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("")
    path = tmp_path / name
    with pytest.raises(OutputRefused, match=r"^--out: found .*: .*; accepted: a file that can be written$"):
        write_output(path, b"new", "--out")


def test_a_folder_is_there_or_new(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    for path in (tmp_path, tmp_path / "new", tmp_path / "link"):
        check_output_folder(path, "--out")
    (tmp_path / "file").write_text("")
    link_to_nothing(tmp_path / "dangling")
    for name, found in (("file", "a file"), ("dangling", "a link to nothing")):
        with pytest.raises(OutputRefused, match=f"--out: found {found}, .*; accepted: a folder, or the name of a new"):
            check_output_folder(tmp_path / name, "--out")
