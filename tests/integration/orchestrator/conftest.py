"""A run whose orchestrator is a process, and the engine that it finds."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from echorl_testing.engines.fake_engine import FakeEngine
from echorl_testing.orchestrator.orchestrator_run import Run


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as made:
        yield made


@pytest.fixture
def run(tmp_path: Path, engine: FakeEngine) -> Run:
    return Run(tmp_path, engine)
