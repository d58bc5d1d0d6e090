"""A pod whose ranks run scripts: ``scripted_pod.py FOLDER SCRIPT...``, one Python script a rank, with short deadlines.

Writes the pod's last words to ``FOLDER/said.json``; ends with its code. A script finds ``FOLDER`` as its first
argument. With ``GANG=INDEX/PODS/PORT`` the pod is one of several that restart in place together; with ``CONFIG`` too, a
trainer's config, as that says and the pod's own variables.
"""

import ctypes
import os
import sys
from pathlib import Path

from echorl_core.config import MemoryConfig
from echorl_core.identity import RunIdentity
from echorl_core.memory_copies import RankMemory
from echorl_core.termination_message import encoded
from echorl_trainer.agreement import Agreement
from echorl_trainer.in_place import FirstPod, InPlace
from echorl_trainer.in_place_http import RemoteFirstPod, restarts_in_place, serve
from echorl_trainer.pod import Pod
from echorl_trainer.pod_layout import Layout

PR_SET_CHILD_SUBREAPER = 36

_RANK = """
import os, pathlib, signal, subprocess, sys, time
from echorl_core.memory_copies import HEAD_BYTES, mirror_note_from, slots_from
from echorl_core.termination_message import message_of_end, write
folder, rank = pathlib.Path(sys.argv[1]), int(os.environ["RANK"])
def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
def done(name):
    (folder / name).touch()
def hold(step):
    slots_from(os.environ)[0].seal(step, b"", HEAD_BYTES)
restarts = int(os.environ.get("ECHORL_RESTARTS", "0"))
"""


def main() -> int:
    folder, scripts = Path(sys.argv[1]), sys.argv[2:]
    # Like process 1 of a container: orphans come to us.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    index, pods, port = map(int, os.environ.get("GANG", "0/1/0").split("/"))
    layout = Layout(pods=pods, index=index, ranks_per_pod=len(scripts))
    for rank, script in zip(layout.ranks, scripts, strict=True):
        (folder / f"rank_{rank}.py").write_text(_RANK + script)
    choose = "import os, runpy, sys; runpy.run_path(sys.argv[1] + '/rank_' + os.environ['RANK'] + '.py')"
    command = [sys.executable, "-c", choose, str(folder)]
    words = folder / f"words_{index}"
    words.mkdir(exist_ok=True)
    settle_s, grace_s = float(os.environ.get("SETTLE_S", "1.0")), float(os.environ.get("GRACE_S", "0.5"))
    notice_s = float(os.environ["NOTICE_S"]) if "NOTICE_S" in os.environ else None
    identity = RunIdentity.from_environment(os.environ)
    in_place = in_place_of(layout, port, identity) if pods > 1 else None
    pod = Pod(layout, command, words, settle_s=settle_s, grace_s=grace_s, notice_s=notice_s, in_place=in_place)
    code = pod.run()
    (folder / ("said.json" if not index else f"said_{index}.json")).write_bytes(
        encoded(pod.termination_message(identity))
    )
    return code


def in_place_of(layout: Layout, port: int, identity: RunIdentity) -> InPlace | None:
    if "CONFIG" in os.environ:
        config, pods = Path(os.environ["CONFIG"]), layout.pods
        return restarts_in_place(config, os.environ, identity, pods=pods, pod=layout.index, ranks=layout.ranks)
    first: FirstPod = RemoteFirstPod("127.0.0.1", port, identity, "token")
    if layout.index == 0:
        first = agreement = Agreement(MemoryConfig(limit_bytes=1, backoff_s=0.0), layout.pods)
        serve(agreement, "127.0.0.1", port, pods=layout.pods, identity=identity, token="token")
    return InPlace(layout.index, {rank: RankMemory(rank) for rank in layout.ranks}, first)


if __name__ == "__main__":
    sys.exit(main())
