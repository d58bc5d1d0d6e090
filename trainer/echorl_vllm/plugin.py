"""vLLM plugin, run by every vLLM process: vLLM's own children die with their parent, however it dies.

Where engines on CPUs are to return routed experts, it has them do so.
"""

import ctypes
import multiprocessing
import os
import signal

from echorl_vllm.environment import ENV_CPU_ROUTED_EXPERTS, ENV_DIE_WITH_PARENT

_PR_SET_PDEATHSIG = 1


def register() -> None:
    """Ask the kernel to kill this process when its parent ends. The engine's first process is its starter's matter."""
    if os.environ.get(ENV_CPU_ROUTED_EXPERTS) == "1":
        # Of vLLM itself, so of no process that needs none of it.
        from echorl_vllm import cpu_routed_experts  # noqa: PLC0415

        cpu_routed_experts.install()
    parent = multiprocessing.parent_process()
    if os.environ.get(ENV_DIE_WITH_PARENT) != "1" or parent is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the request was made: then no signal will ever come.
    if not parent.is_alive():
        os.kill(os.getpid(), signal.SIGKILL)
