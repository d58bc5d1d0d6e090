"""Runs a command that the kernel signals when its parent dies: ``tethered.py SIGNAL PARENT_PID COMMAND ...``.

Run by path with ``-I -S``, so that it starts fast and sees nothing of the command's environment.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the command."""
    number, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the call.
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell on purpose
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
