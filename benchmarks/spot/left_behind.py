"""What a life in real pods leaves to be read after it: its pods' logs, the operator's log, and the run's records."""

import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from echorl_testing.operator.real_stage import Stage

_LOOK_S = 2.0
"""Between two lists of pods; each takes processors from the run."""
_ENDS_S = 10.0


class LeftBehind:
    """Follows the logs of a run's pods while it lives, and keeps all of it in a folder when it has ended."""

    def __init__(self, stage: Stage, operator_log: Path, folder: Path) -> None:
        self._stage, self._operator_log, self._folder = stage, operator_log, folder
        self._followed: dict[str, subprocess.Popen[bytes]] = {}
        self._due = 0.0
        folder.mkdir(exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def look(self) -> None:
        """Follow the log of each running pod that is new, to ``NAME.UID.log``, with the time of each line."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _LOOK_S
        for name, pod in self._stage.run.pods().items():
            uid = pod["metadata"]["uid"]
            if uid in self._followed or pod["status"].get("phase") != "Running":
                continue
            cluster, namespace = self._stage.run.cluster, self._stage.run.namespace
            command = [str(cluster.binaries.path("kubectl")), f"--kubeconfig={cluster.connection.kubeconfig}"]
            with (self._folder / f"{name}.{uid[:8]}.log").open("wb") as to:
                self._followed[uid] = subprocess.Popen(
                    [*command, "logs", f"--namespace={namespace}", "--follow", "--timestamps", name],
                    stdin=subprocess.DEVNULL,
                    stdout=to,
                    stderr=subprocess.STDOUT,
                )

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        """Stop to follow, and copy what the run and the operator wrote."""
        for process in self._followed.values():
            process.terminate()
            process.wait(_ENDS_S)
        records = self._stage.directory.root / "records"
        if records.exists():
            shutil.copytree(
                records, self._folder / "records", ignore=shutil.ignore_patterns("episodes", "eval_episodes")
            )
        shutil.copy(self._operator_log, self._folder)
