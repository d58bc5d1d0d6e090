"""Calls to a worker that belong to no episode: a task, a group's scoring, a user's own function."""

import asyncio
from typing import Any

from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.workers.pool import WorkerPool

DEADLINE_S = 60.0
TRIES = 3


async def call(pool: WorkerPool, op: str, **args: Any) -> Any:
    """A call to any worker; made again when that one died.

    Raises:
        EpisodeError: ENV when the environment's code raised, TIMEOUT, or SANDBOX when workers died again and again.
    """
    for _ in range(TRIES - 1):
        try:
            return await _once(pool, op, args)
        except EpisodeError as error:
            if error.kind is not ErrorKind.SANDBOX:
                raise
    return await _once(pool, op, args)


async def _once(pool: WorkerPool, op: str, args: dict[str, Any]) -> Any:
    """One call; a worker that does not answer in time is retired."""
    try:
        async with asyncio.timeout(DEADLINE_S), pool.borrowed() as worker:
            try:
                return await worker.call(op, **args)
            except asyncio.CancelledError:
                pool.retire(worker)
                raise
    except TimeoutError:
        raise EpisodeError(ErrorKind.TIMEOUT, f"{op} took more than {DEADLINE_S:g} s") from None
