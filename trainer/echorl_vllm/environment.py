"""Environment variables that only an engine's processes know, and folders found through them."""

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

ENV_WORK = "ECHORL_ENGINE_WORK"
"""Folder of one engine: caches, temporary files, the record of what must be cleaned after a crash."""
ENV_SPOOL = "ECHORL_ENGINE_SPOOL"
"""Folder for downloaded weights, shared by the engines of a host; default: ``spool`` in the work folder."""
ENV_DIE_WITH_PARENT = "ECHORL_DIE_WITH_PARENT"
"""``1``: vLLM's child processes are killed when their parent dies."""
ENV_CPU_ROUTED_EXPERTS = "ECHORL_CPU_ROUTED_EXPERTS"
"""``1``: an engine on CPUs returns the experts that tokens went to."""

_SOCKET_ADDRESS = 107
"""Bytes that Linux allows in a Unix socket's path."""
_SOCKET_NAME = 40
"""Bytes that vLLM's and Python's own socket names may add to the temporary folder's path."""


def short_path(folder: Path) -> Path:
    """``folder`` under a name short enough for sockets: itself, or a link to it in the temporary folder.

    Raises:
        ValueError: there is no room for a link either, or its name is taken.
    """
    if _has_room(folder):
        return folder
    link = Path(tempfile.gettempdir()) / f"echorl-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    if not _has_room(link):
        raise ValueError(f"{folder}: too long a path for sockets, and so is {link}")
    for other in link.parent.glob(f"echorl-{'?' * 16}"):
        with suppress(FileNotFoundError):  # another engine is as quick
            if other.lstat().st_uid == os.getuid() and other.is_symlink() and not other.exists():
                other.unlink()  # its folder was removed
    try:
        link.symlink_to(folder)
    except FileExistsError:
        # Anyone may make files in a temporary folder.
        if not link.is_symlink() or link.readlink() != folder or link.lstat().st_uid != os.getuid():
            raise ValueError(f"{link}: is not this engine's link to {folder}; accepted after its removal") from None
    return link


def _has_room(folder: Path) -> bool:
    return len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_ADDRESS


def share_model_facts(cache: Path, environment: Path, vllm_package: Path) -> None:
    """Let engines of one Python environment share what vLLM finds out about a model's class.

    vLLM asks a process of its own, which imports all of it for that: a third of a start's CPU time. An environment
    that cannot be written to shares nothing; an engine's own restarts still find what is in ``cache``.

    Args:
        cache: the engine's ``VLLM_CACHE_ROOT``.
        environment: folder of the Python environment.
        vllm_package: folder of vLLM; another version of it begins anew.
    """
    with suppress(OSError):
        asked = hashlib.sha256((vllm_package / "model_executor/models/registry.py").read_bytes()).hexdigest()[:16]
        shared = environment / "var" / "vllm-modelinfos" / asked
        shared.mkdir(parents=True, exist_ok=True)
        if os.access(shared, os.W_OK):
            (cache / "modelinfos").symlink_to(shared)


def work_folder() -> Path:
    """This engine's folder."""
    return Path(os.environ.get(ENV_WORK) or Path(tempfile.gettempdir()) / "echorl-engine")


def bell_path() -> Path:
    """The pipe by which workers tell that staging has ended."""
    return work_folder() / "staging.bell"


def spool_folder() -> Path:
    """Where downloaded weights are kept until they are applied."""
    configured = os.environ.get(ENV_SPOOL)
    return Path(configured) if configured else work_folder() / "spool"
