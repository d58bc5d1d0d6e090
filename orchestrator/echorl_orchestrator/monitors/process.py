"""A monitor's process: ``python -P -m echorl_orchestrator.monitors.process --kind wandb --parent PID``.

It reads an opening and then rows from its input, a line of JSON each, and answers each with a line. It ends with its
input, and with its parent.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from echorl_core.tether import die_with_parent
from echorl_orchestrator.monitors.rows import Row


class Sink(Protocol):
    """What a monitor does with rows; whatever its methods raise ends the process."""

    def write(self, row: Row) -> None:
        """Take over one row."""
        ...

    def close(self) -> None:
        """Write out everything."""
        ...


def _wandb(opening: Mapping[str, Any]) -> Sink:
    from echorl_orchestrator.monitors.wandb_sink import WandbSink  # noqa: PLC0415 - one client a process

    return WandbSink(opening)


def _tensorboard(opening: Mapping[str, Any]) -> Sink:
    from echorl_orchestrator.monitors.tensorboard_sink import TensorBoardSink  # noqa: PLC0415 - one client a process

    return TensorBoardSink(opening)


SINKS: Mapping[str, Callable[[Mapping[str, Any]], Sink]] = {"wandb": _wandb, "tensorboard": _tensorboard}


def _serve(kind: str, answer: Callable[[dict[str, Any]], None]) -> int:
    try:
        sink = SINKS[kind](msgspec.json.decode(sys.stdin.buffer.readline()))
        answer({"open": True})
        for line in sys.stdin.buffer:
            sink.write(msgspec.json.decode(line, type=Row))
            answer({"written": True})
        sink.close()
    except Exception as error:
        answer({"failed": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def main() -> None:
    """Run one monitor."""
    parser = argparse.ArgumentParser(prog="python -m echorl_orchestrator.monitors.process", description=__doc__)
    parser.add_argument("--kind", choices=sorted(SINKS), required=True)
    parser.add_argument("--parent", type=int, required=True)
    chosen = parser.parse_args()
    die_with_parent(chosen.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # What a client prints must not look like an answer.
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    code = _serve(chosen.kind, answer)
    # What a client still does at exit may hang; everything is written.
    os._exit(code)


if __name__ == "__main__":
    main()
