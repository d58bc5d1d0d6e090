"""Keeps what this process was given from others of its user: environments' workers run as it does."""

import ctypes

_PR_SET_DUMPABLE = 4


def withhold() -> None:
    """Have the kernel refuse ``/proc/PID/environ``, ``mem`` and tracing of this process to all without privileges.

    Processes that it starts are as open as any. There are no core dumps of it either.

    Raises:
        OSError: the kernel does not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")
