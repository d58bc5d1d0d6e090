"""Functions run on several gloo ranks, each a process of its own."""

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from echorl_testing import warm
from echorl_testing.ports import free_port


def on_ranks(num_ranks: int, function: Callable[..., Any], *arguments: Any, deadline_s: float = 240.0) -> list[Any]:
    """Run ``function(*arguments)`` on every rank with torchrun's variables set; results in the order of ranks.

    ``function`` must be importable; what it returns is pickled. A rank that fails fails the caller with its traceback.
    """
    port = free_port()
    pipes, processes = [], []
    for rank in range(num_ranks):
        mine, theirs = warm.context().Pipe(duplex=False)
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        process = warm.context().Process(target=_rank, args=(theirs, variables, function, arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    try:
        return [_result(rank, pipe, deadline_s) for rank, pipe in enumerate(pipes)]
    finally:
        for process in processes:
            process.join(5.0)
            process.kill()


def _rank(
    pipe: Connection, variables: dict[str, str], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(variables)
    try:
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _result(rank: int, pipe: Connection, deadline_s: float) -> Any:
    if not pipe.poll(deadline_s):
        raise TimeoutError(f"rank {rank} gave no result within {deadline_s} s")
    succeeded, value = pipe.recv()
    if not succeeded:
        raise AssertionError(f"rank {rank} failed:\n{value}")
    return value
