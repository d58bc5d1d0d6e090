"""How a rank's shard of a checkpoint is written."""

from collections.abc import Callable
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils.serialization import config

from echorl_core.faults import fault_point


class ShardWriter(FileSystemWriter):
    """torch's file writer with fault points before a rank's shard, and between it and the metadata."""

    def __init__(
        self,
        folder: Path,
        *,
        sync_files: bool = True,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """``ready`` returns when what is to be written lies in host memory; it is called before the first read."""
        super().__init__(folder, sync_files=sync_files)
        self._ready = ready

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's shard.

        Raises:
            OSError: the disk refused a write.
        """
        fault_point("trainer.before_save")
        self._ready()
        try:
            # Whoever commits the files keeps their sha256, which is more; a CRC of every tensor takes half of the time.
            with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined] # noqa: FBT003 - torch's signature
                written = super().write_data(plan, planner)
        except RuntimeError as error:
            # Closing a file that could not be written, torch's zip writer fails again and hides why.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        fault_point("trainer.mid_save")
        return written
