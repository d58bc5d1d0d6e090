"""What an orchestrator's process was given stays with it: in a pod, workers run as the same user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = Path(__file__).parents[4] / "orchestrator" / "echorl_orchestrator" / "workers" / "own_memory.py"
LOOK = """
import os, subprocess, sys
from pathlib import Path
if sys.argv[1] == "withheld":
    exec(sys.stdin.read())
    withhold()
# A user's interpreter may stand where only root gets to.
look = "tr '\\\\0' '\\\\n' < /proc/$PPID/environ"
done = subprocess.run(["/bin/sh", "-c", look], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
print("SEEN" if "TOKEN=secret" in done.stdout else "NOT SEEN", done.stderr)
"""


def told(how: str) -> str:
    """What a child of a process with a token in its environment sees of it. Root sees everything."""
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-I", "-c", LOOK, how],
        input=MODULE.read_text(),
        env={"TOKEN": "secret", "PATH": "/usr/local/bin:/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        **nobody,
    )
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_child_cannot_read_what_its_parent_was_given() -> None:
    assert told("open").startswith("SEEN")
    assert told("withheld").startswith("NOT SEEN")
