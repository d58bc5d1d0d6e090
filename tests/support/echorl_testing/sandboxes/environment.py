"""An environment whose agent lives in a sandbox: it calls the model from inside, and forgets to destroy anything."""

import json
import time
from pathlib import Path
from typing import Any

from echorl_orchestrator.types import (
    Command,
    Environment,
    Limits,
    RunnerResult,
    SandboxError,
    Sandboxes,
    SandboxLimits,
    SandboxLoss,
    SandboxSpec,
)

_CALL = """
import json, sys, urllib.request
asked = {"messages": [{"role": "user", "content": "hello"}]}
request = urllib.request.Request(sys.argv[1], json.dumps(asked).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


class Agent:
    """``ends``: well, hang (once it has a sandbox), lost (the sandbox is reported as lost)."""

    def __init__(self, ends: str, marks: str) -> None:
        self._ends = ends
        self._marks = Path(marks)

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits, sandboxes: Sandboxes
    ) -> RunnerResult:
        """One call from inside a sandbox."""
        mark = self._marks / session
        # One episode asks for more than the run gives, another one for nothing.
        asked = SandboxLimits(disk_bytes=1 << 40) if task["key"] else None
        sandbox = await sandboxes.create(SandboxSpec("host", "/task", asked, gateway=True), "a")
        await sandbox.start(Command(["sleep", "100000"]), "forgotten")
        size = "df -B1 --output=size / | tail -1"
        await sandbox.start(Command(["sh", "-c", size]), "size")
        await sandbox.wait("size", 60)
        span = [time.time(), 0.0]
        mark.write_text(json.dumps(span))
        if self._ends == "lost":
            raise SandboxError(SandboxLoss.EVICTED, "the node is gone")
        seconds = 3600.0 if self._ends == "hang" else 60.0
        url = f"{sandbox.gateway}/s/{session}/v1/chat/completions"
        argv = ["sleep", "3600"] if self._ends == "hang" else ["python3", "-c", _CALL, url]
        await sandbox.start(Command(argv), "agent")
        ended = await sandbox.wait("agent", seconds)
        said = (await sandbox.output("agent")).decode()
        span[1] = time.time()
        mark.write_text(json.dumps(span))
        info = {"said": said, "code": None if ended is None else ended.code, "base_url": base_url, "model": model}
        info |= {"disk": (await sandbox.output("size")).decode().strip(), "max_turns": limits.max_turns}
        return RunnerResult(reward=0.5, info=info)


class _Tasks:
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"key": index}


def agent(marks: str, ends: str = "well") -> Environment:
    """The environment."""
    return Environment(_Tasks(), runner=Agent(ends, marks))
