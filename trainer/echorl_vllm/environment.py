"""Environment variables that only an engine's processes know, and folders found through them."""

import os
import tempfile
from pathlib import Path

ENV_WORK = "ECHORL_ENGINE_WORK"
"""Folder of one engine: caches, temporary files, the record of what must be cleaned after a crash."""
ENV_SPOOL = "ECHORL_ENGINE_SPOOL"
"""Folder for downloaded weights, shared by the engines of a host; default: ``spool`` in the work folder."""
ENV_DIE_WITH_PARENT = "ECHORL_DIE_WITH_PARENT"
"""``1``: vLLM's child processes are killed when their parent dies."""


def work_folder() -> Path:
    """This engine's folder."""
    return Path(os.environ.get(ENV_WORK) or Path(tempfile.gettempdir()) / "echorl-engine")


def spool_folder() -> Path:
    """Where downloaded weights are kept until they are applied."""
    configured = os.environ.get(ENV_SPOOL)
    return Path(configured) if configured else work_folder() / "spool"
