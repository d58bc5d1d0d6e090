"""Tasks that run beside each other: the failure of one ends all, and none may end unasked."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from echorl_core.names import ExitCode
from echorl_orchestrator.failures import BadInputError, RunFailure

T = TypeVar("T")


class Closeable(Protocol):
    """A part that ends what it runs."""

    async def close(self) -> None:
        """End what the part runs, and wait until it has ended."""
        ...


async def until(main: Coroutine[Any, Any, T], **background: Coroutine[Any, Any, None]) -> T:
    """The result of ``main``; the background tasks are cancelled when it is there.

    Raises:
        Exception: of the first task that failed; RuntimeError if a background task just ended.
    """
    wanted = asyncio.create_task(main, name="main")
    others = [asyncio.create_task(coroutine, name=name) for name, coroutine in background.items()]
    tasks: list[asyncio.Task[Any]] = [wanted, *others]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            if task in done:
                await task
                raise RuntimeError(f"the task {task.get_name()} ended by itself")
        return await wanted
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def failure_in(error: BaseException) -> RunFailure | None:
    """The RunFailure that an error is or holds, however deep the groups of tasks nest; bad input is one too."""
    if isinstance(error, RunFailure):
        return error
    if isinstance(error, BadInputError):
        return RunFailure(ExitCode.BAD_INPUT, str(error))
    if isinstance(error, BaseExceptionGroup):
        return next((failure for inner in error.exceptions if (failure := failure_in(inner)) is not None), None)
    return None


async def close_all(*parts: Closeable, deadline_s: float = 10.0) -> None:
    """Close parts one after the other; one that hangs does not keep the role alive."""
    for part in parts:
        try:
            async with asyncio.timeout(deadline_s):
                await part.close()
        except TimeoutError:
            continue
