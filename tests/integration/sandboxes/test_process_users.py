"""Root and an ordinary user have the same sandboxes. Where tests run as root, this one is the ordinary user's."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import echorl_orchestrator
from echorl_testing.sandboxes.images import small_image

NOBODY = 65534
SCRIPT = """
import asyncio, sys
from pathlib import Path
from echorl_orchestrator.sandboxes.contract import Command, SandboxSpec
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes

async def main():
    sandboxes = ProcessSandboxes(Path(sys.argv[1]))
    sandbox = await sandboxes.create(SandboxSpec(sys.argv[2], "/task"), "one")
    for root in (False, True):
        script = "id -u; rm -r /data/old && mkdir /data/old; ls /data"
        await sandbox.start(Command(["sh", "-c", script], root=root), str(root))
        print(await sandbox.wait(str(root), 60), await sandbox.output(str(root)))
    await sandboxes.close()

asyncio.run(main())
"""


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder that everybody reaches and may write to."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o777)  # noqa: PTH101
        yield Path(folder)


def _python() -> str:
    """An interpreter that an ordinary user can start, with modules that he can read."""
    for python in (sys.executable, "/usr/bin/python3"):
        found = Path(python).resolve()
        if found.exists() and all(folder.stat().st_mode & stat.S_IXOTH for folder in found.parents):
            asked = [python, "-c", "import sys; print(sys.version_info >= (3, 11))"]
            said = subprocess.run(asked, capture_output=True, check=True)
            if said.stdout == b"True\n":
                return python
    pytest.skip("no Python 3.11 that other users than root can start")


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_an_ordinary_user_has_the_same(ground: Path) -> None:
    package = Path(echorl_orchestrator.__file__).parent
    copied = ground / "code" / "echorl_orchestrator"
    shutil.copytree(package / "sandboxes", copied / "sandboxes", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(package / "__init__.py", copied)
    small_image(ground / "tree")
    with tarfile.open(ground / "image.tar.xz", "w:xz", preset=0) as packed:
        packed.add(ground / "tree", ".")
    ordinary = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}

    done = await asyncio.create_subprocess_exec(
        *(_python() if ordinary else sys.executable, "-c", SCRIPT, str(ground / "state"), str(ground / "image.tar.xz")),
        env={"PYTHONPATH": str(ground / "code"), "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        **ordinary,  # type: ignore[arg-type]
    )
    said, _ = await done.communicate()

    ended = "Ended(code=0, killed=False, out_of_memory=False, out_of_processes=False)"
    assert said.decode() == f"{ended} b'1000\\nkept\\nold\\n'\n{ended} b'0\\nkept\\nold\\n'\n"
