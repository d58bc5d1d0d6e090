"""A pod whose ranks run scripts, as a process of its own."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from echorl_core.termination_message import TerminationMessage, read
from echorl_testing.trainer import scripted_pod

STARTED: list["ScriptedPod"] = []
"""By the test that runs."""


class ScriptedPod:
    def __init__(
        self,
        folder: Path,
        *scripts: str,
        settle_s: float = 1.0,
        grace_s: float = 0.5,
        notice_s: float | None = None,
        gang: tuple[int, int, int] = (0, 1, 0),
    ) -> None:
        """``gang``: index, pods, port."""
        self.folder = folder
        self._said = "said.json" if not gang[0] else f"said_{gang[0]}.json"
        identity = {"ECHORL_RUN_NAME": "run", "ECHORL_RUN_UID": "uid", "ECHORL_ATTEMPT": "7"}
        command = [sys.executable, scripted_pod.__file__, str(folder), *scripts]
        support = str(Path(scripted_pod.__file__).parents[2])
        environment = {**os.environ, **identity, "PYTHONPATH": support, "SETTLE_S": str(settle_s)}
        environment["GRACE_S"] = str(grace_s)
        environment["GANG"] = "/".join(map(str, gang))
        if notice_s is not None:
            environment["NOTICE_S"] = str(notice_s)
        self.process = subprocess.Popen(command, env=environment)
        STARTED.append(self)

    def wait_for(self, *names: str) -> None:
        until = time.monotonic() + 120
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < until, names
            assert self.process.poll() is None, self.process.returncode
            time.sleep(0.01)

    def ended(self) -> tuple[int, TerminationMessage]:
        code = self.process.wait(120)
        words = read((self.folder / self._said).read_bytes())
        assert words is not None
        assert words.exit_code == code
        return code, words

    def kill(self) -> None:
        """All its processes are gone at once."""
        pid = self.process.pid
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self.process.kill()
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(int(rank), signal.SIGKILL)
        self.process.wait(60)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()
