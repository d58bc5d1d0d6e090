import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from echorl_core.config import (
    BatchConfig,
    CheckpointConfig,
    EngineDiscovery,
    ModelConfig,
    OrchestratorConfig,
    SamplingConfig,
)
from echorl_core.identity import RunIdentity
from echorl_core.wire.run_state import EngineView
from echorl_orchestrator.engines import EnginePool
from echorl_orchestrator.engines.generation import Generation
from echorl_orchestrator.engines.journal.journal import TurnJournal
from echorl_orchestrator.engines.timing import Timing
from echorl_testing.engines.fake_engine import RUN_UID, TOKEN, FakeEngine

EXTRA = {"X-Extra": "yes", "x-echorl-run": "another run", "x-echorl-token": "another token"}
"""Of a manifest; the last two are ours, and stay as they are."""
TIMING = Timing(
    identity_s=0.02,
    silence_s=60.0,
    metrics_s=0.05,
    look_s=10.0,
    admin_s=10.0,
    stage_again_s=0.005,
    retry_first_s=0.02,
    retry_max_s=0.1,
    update_tries=2,
    generate_s=120.0,
    elsewhere_s=0.1,
)


class Harness:
    """A pool that runs, what it reported, and short forms of its calls."""

    def __init__(self, pool: EnginePool, updates: list[dict[str, Any]], forever: asyncio.Task[None]) -> None:
        self.pool = pool
        self.updates = updates
        self.forever = forever

    def view(self, engine: FakeEngine) -> EngineView:
        return next(view for view in self.pool.views() if view.name == engine.address)

    async def eventually(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - what a pool shows has no event to wait for
                await asyncio.sleep(0.002)

    async def state(self, engine: FakeEngine, state: str) -> None:
        def reached() -> bool:
            views = [view for view in self.pool.views() if view.name == engine.address]
            return bool(views) and views[0].state == state

        await self.eventually(reached)

    async def generate(self, episode: str = "e1", experts_from: int | None = None) -> Generation:
        return await self.pool.generate(
            episode=episode,
            prompt_ids=[1, 2],
            sampling=SamplingConfig(temperature=0.7),
            max_tokens=8,
            stop_ids=[9],
            experts_from=experts_from,
        )

    def call(self, episode: str = "e1") -> asyncio.Task[Generation]:
        return asyncio.create_task(self.generate(episode))


def config(
    *names: str, lease_s: float = 30.0, deadline_s: float = 60.0, mixture: Path | None = None
) -> OrchestratorConfig:
    """``mixture``: a folder of a model whose engines return experts."""
    return OrchestratorConfig(
        run_dir="run",
        port=1,
        router_replay=mixture is not None,
        model=ModelConfig(path=str(mixture or "model"), dtype="float32", max_model_len=64, renderer="plain"),
        seed=0,
        max_steps=1,
        batch=BatchConfig(group_size=1, batch_size=1, max_staleness=1, seq_len=64, num_ranks=1),
        train=[],
        engines=EngineDiscovery(names=list(names), interval_s=0.05, extra_headers=EXTRA),
        weight_mode="http",
        checkpoint=CheckpointConfig(interval=1, keep_last=1),
        pause_lease_s=lease_s,
        update_deadline_s=deadline_s,
    )


@pytest.fixture
def running_pool() -> Callable[..., Any]:
    """``async with running_pool(engine, ...) as harness``; fails if a task of the pool failed."""

    @asynccontextmanager
    async def run(
        *engines: FakeEngine,
        attempt: int = 1,
        timing: Timing = TIMING,
        names: Sequence[str] = (),
        fails: bool = False,
        journal: TurnJournal | None = None,
        **settings: Any,
    ) -> AsyncIterator[Harness]:
        updates: list[dict[str, Any]] = []
        pool = EnginePool(
            config(*names, *(engine.address for engine in engines), **settings),
            RunIdentity("run", RUN_UID, attempt),
            TOKEN,
            on_update=updates.append,
            timing=timing,
            journal=journal,
        )
        await pool.start()
        forever = asyncio.create_task(pool.run_forever())
        try:
            yield Harness(pool, updates, forever)
            assert forever.done() == fails, forever
        finally:
            forever.cancel()
            await pool.close()

    return run
