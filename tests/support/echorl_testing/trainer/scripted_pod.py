"""A pod whose ranks run scripts: ``scripted_pod.py FOLDER SCRIPT...``, one Python script a rank, with short deadlines.

Writes the pod's last words to ``FOLDER/said.json``; ends with its code. A script finds ``FOLDER`` as its first
argument.
"""

import ctypes
import os
import sys
from pathlib import Path

from echorl_core.identity import RunIdentity
from echorl_core.termination_message import encoded
from echorl_trainer.pod import Layout, Pod

PR_SET_CHILD_SUBREAPER = 36

_RANK = """
import os, pathlib, signal, subprocess, sys, time
from echorl_core.termination_message import message_of_end, write
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
def done(name):
    (folder / name).touch()
"""


def main() -> int:
    folder, scripts = Path(sys.argv[1]), sys.argv[2:]
    # Like process 1 of a container: orphans come to us.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for rank, script in enumerate(scripts):
        (folder / f"rank_{rank}.py").write_text(_RANK + script)
    choose = "import os, runpy, sys; runpy.run_path(sys.argv[1] + '/rank_' + os.environ['RANK'] + '.py')"
    command = [sys.executable, "-c", choose, str(folder)]
    words = folder / "words"
    words.mkdir()
    settle_s = float(os.environ.get("SETTLE_S", "1.0"))
    notice_s = float(os.environ["NOTICE_S"]) if "NOTICE_S" in os.environ else None
    layout = Layout(pods=1, index=0, ranks_per_pod=len(scripts))
    pod = Pod(layout, command, words, settle_s=settle_s, grace_s=0.5, notice_s=notice_s)
    code = pod.run()
    said = pod.termination_message(RunIdentity.from_environment(os.environ))
    (folder / "said.json").write_bytes(encoded(said))
    return code


if __name__ == "__main__":
    sys.exit(main())
