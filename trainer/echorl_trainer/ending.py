"""The end of a process that has had torch's process groups."""

import contextlib
import logging
import os
import sys
from typing import NoReturn


def end(code: int) -> NoReturn:
    """End with ``code``, whatever becomes of the last output.

    Threads of the groups can abort the interpreter's own shutdown, and with it the exit code.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(code)
