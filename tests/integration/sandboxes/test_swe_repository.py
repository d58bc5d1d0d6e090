"""Work trees in real sandboxes: a diff carries all that an agent did to the files of one into another."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from echorl_orchestrator.environments.builtin.parts.swe import repository
from echorl_orchestrator.environments.builtin.parts.swe.box import Box
from echorl_orchestrator.environments.builtin.parts.swe.preparing import STATEMENT, prepare
from echorl_orchestrator.environments.builtin.parts.swe.row import Row
from echorl_orchestrator.sandboxes.contract import Command, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing.sandboxes.swe_rows import ROW

S = 60.0
CRLF = replace(
    ROW,
    files={
        "dos.txt": b"one\r\ntwo\r\n",
        "calc.py": ROW.files["calc.py"],
        "picture.bin": bytes(range(256)),
        "gone.txt": b"x\n",
        "dir/link": b"was a file\n",
        "tool.sh": b"#!/bin/sh\n",
        ".gitattributes": b"* text=auto eol=lf\n*.txt filter=lost\n",
        "kept.log": b"tracked and ignored\n",
        ".gitignore": b"*.log\n",
    },
    setup=("git init -q", "git add -A -f", "git -c user.name=a -c user.email=a@b commit -qm all"),
)
MUCH = r"""
set -e
printf 'one\r\ntwo\r\nthree\n' > dos.txt
printf '\000\001\002' > picture.bin
head -c 100000 /dev/urandom > new.bin
printf 'no newline at the end' > calc.py
rm gone.txt
rm dir/link && ln -s ../calc.py dir/link
chmod 644 tool.sh
mkdir -p "a b/c" && echo x > "a b/c/$(printf 'new\nline "quoted" \303\244')"
echo changed >> kept.log
: > empty
git -c user.name=x -c user.email=x@y commit -qam mine && git checkout -q --orphan lost
"""
LISTED = (
    "find . -path ./.git -prune -o -type f -exec sha256sum {} + -o -type l -printf '%p -> %l\\n' | sort; "
    "find . -path ./.git -prune -o -type f -perm -100 -print | sort"
)


class Boxes:
    """Sandboxes of rows, by name."""

    def __init__(self, made: ProcessSandboxes) -> None:
        self._made = made

    async def of(self, row: Row, name: str, *, agent: bool = True) -> tuple[Box, str]:
        """A prepared one, and its baseline."""
        box = await Box.make(self._made, SandboxSpec(row.image, row.workdir), name, row.key, S)
        return box, (await prepare(box, row, agent=agent, seconds=S)).base


@pytest.fixture
async def boxes(tmp_path: Path) -> AsyncIterator[Boxes]:
    made = ProcessSandboxes(tmp_path / "sandboxes")
    try:
        yield Boxes(made)
    finally:
        await made.close()


async def said(box: Box, script: str, *, root: bool = False) -> str:
    ran = await box.run(Command(["/bin/sh", "-c", script], workdir=ROW.workdir, root=root), S)
    assert ran.well, ran
    return ran.output


async def test_a_diff_carries_every_kind_of_change(boxes: Boxes) -> None:
    worked, base = await boxes.of(CRLF, "agent")
    await said(worked, MUCH)
    diff, why = await repository.taken_diff(worked, CRLF.workdir, base, longest=1 << 20, seconds=S)
    assert diff is not None, why
    clean, again = await boxes.of(CRLF, "grader", agent=False)
    assert again == base  # the same set-up makes the same baseline
    applied = await repository.apply(clean, CRLF.workdir, diff, seconds=S)
    assert applied is not None
    assert applied.rung == 1
    assert {"dos.txt", "gone.txt", "kept.log", "tool.sh", 'a b/c/new\nline "quoted" ä'} <= applied.changed
    assert await said(clean, LISTED, root=True) == await said(worked, LISTED)


async def test_an_agent_has_the_files_and_not_their_history(boxes: Boxes) -> None:
    git = "git -c user.name=a -c user.email=a@b"
    row = replace(
        ROW,
        setup=(
            f"git init -q && git add -A && {git} commit -qm then",
            f"echo 'def add(a, b): return a + b' > calc.py && {git} commit -qam 'the fix'",
            "git tag answer && git remote add origin https://example.invalid/x && git reset -q --hard HEAD~1",
        ),
    )
    worked, base = await boxes.of(row, "agent")
    script = (
        "git log --all --oneline; git remote; git tag; git reflog; git fsck --lost-found --no-progress; git status -s"
    )
    found = await said(worked, script)
    assert len(found.splitlines()) == 1  # one commit, nothing else
    assert "fix" not in found
    assert "a - b" in await said(worked, "cat calc.py")
    assert (await said(worked, f"cat {STATEMENT}")) == row.statement
    diff, _ = await repository.taken_diff(worked, row.workdir, base, longest=1 << 20, seconds=S)
    assert diff == b""
    # The statement is in no diff, and no set-up sees it.
    clean, _ = await boxes.of(replace(row, setup=(*row.setup, f"test ! -e {STATEMENT}")), "second")
    assert "echorl" not in await said(clean, "git ls-files")


async def test_a_base_commit_is_checked(boxes: Boxes) -> None:
    date = "2001-01-01T00:00:00Z"
    commit = f"GIT_AUTHOR_DATE={date} GIT_COMMITTER_DATE={date} git -c user.name=a -c user.email=a@b commit -q"
    row = replace(ROW, setup=(f"git init -q && git add -A && {commit} -m one", f"{commit} --allow-empty -m two"))
    box, _ = await boxes.of(row, "first", agent=False)
    first = (await said(box, "git rev-parse HEAD~1", root=True)).strip()
    await boxes.of(replace(row, base_commit=first), "second")


FAR = "".join(f"line {number}\n" for number in range(40))


@pytest.mark.parametrize(
    ("diff", "rung"),
    [
        ("--- a/f\n+++ b/f\n@@ -20,3 +20,3 @@\n line 19\n-line 20\n+LINE\n line 21\n", 1),
        ("--- a/f\n+++ b/f\n@@ -20,4 +20,4 @@\n line 18 was here\n line 19\n-line 20\n+LINE\n line 21\n", 3),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-nothing like it\n+x\n", None),
        ("no diff at all\n", None),
    ],
    ids=["as it is", "with fuzz", "not", "no diff"],
)
async def test_a_diff_comes_in_by_the_first_way_that_works(boxes: Boxes, diff: str, rung: int | None) -> None:
    row = replace(ROW, files={"f": FAR.encode()})
    box, _ = await boxes.of(row, "one", agent=False)
    applied = await repository.apply(box, row.workdir, diff.encode(), seconds=S)
    assert (applied.rung if applied else None) == rung
    expected = FAR.replace("line 20\n", "LINE\n") if rung else FAR
    assert await said(box, "cat f; ls", root=True) == expected + "f\n"
