"""The end of a process that has had torch's process groups."""

import logging
import os
import sys
from typing import NoReturn


def end(code: int) -> NoReturn:
    """End with ``code``: threads of the groups can abort the interpreter's own shutdown, and with it the exit code."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
