"""A provider of real sandboxes."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes


@pytest.fixture
async def sandboxes(tmp_path: Path) -> AsyncIterator[ProcessSandboxes]:
    """A provider of its own folder; nothing of it is left after the test."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed, and only root can install it")
    made = ProcessSandboxes(tmp_path / "sandboxes")
    try:
        yield made
    finally:
        await made.close()
