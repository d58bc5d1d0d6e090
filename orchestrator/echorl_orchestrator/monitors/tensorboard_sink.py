"""TensorBoard: event files under ``tensorboard/attempt_N``, so that each attempt is a curve of its own."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from echorl_orchestrator.monitors.rows import Row


class TensorBoardSink:
    """Writes rows as scalars by step; every row is in the file when ``write`` returns."""

    def __init__(self, opening: Mapping[str, Any]) -> None:
        """``opening``: ``folder`` (of the run) and ``attempt``."""
        folder = Path(opening["folder"]) / "tensorboard" / f"attempt_{opening['attempt']}"
        self._writer = EventFileWriter(str(folder))

    def write(self, row: Row) -> None:
        """Add one event."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=row.at, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
