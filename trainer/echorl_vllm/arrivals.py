"""Tensors of files that are still coming: each is checked, and handed on, as soon as all of its bytes are there.

    download --bytes so far--> which tensors are whole? --> threads: digest right? -> used, such as copied to the GPU

Both leave Python's lock to others meanwhile, so the download goes on beside them.
"""

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from echorl_core.wire.weights import WeightManifest
from echorl_vllm.validation import check_digest, open_file

_THREADS = 4
_LENGTH_BYTES = 8
"""Of the number at a safetensors file's begin, that says how long its header is."""

Use = Callable[[str, Tensor], object]
"""What is done with a tensor that was checked, in any of several threads."""


class Arrivals:
    """The tensors of one version. Leaving the block drops what has not begun and waits for what has."""

    def __init__(self, manifest: WeightManifest, use: Use) -> None:
        self._manifest, self._use = manifest, use
        self._pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "echorl-arrivals")
        self._tasks: deque[Future[None]] = deque()
        self._taking = threading.Lock()
        """Files may come side by side, in threads that all look for what has failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def of(self, file: Path) -> Callable[[int], None]:
        """What is to be told how many of the file's first bytes are there; the file has its whole size from the begin.

        It raises ``WeightsRefusedError`` where the header is not what the manifest says, or a tensor was damaged.
        """
        coming: deque[tuple[int, str, Tensor]] | None = None

        def arrived(count: int) -> None:
            nonlocal coming
            if coming is None and _has_header(file, count):
                coming = self._opened(file)
            while coming and coming[0][0] <= count:
                _, name, tensor = coming.popleft()
                self._tasks.append(self._pool.submit(self._checked, name, tensor))
            self._raise_failed()

        return arrived

    def wait(self, check: Callable[[], object]) -> None:
        """Return when all that arrived is checked and used; ``check`` is called in between. Raises as ``of``."""
        while self._tasks:
            check()
            self._tasks.popleft().result()

    def _opened(self, file: Path) -> deque[tuple[int, str, Tensor]]:
        """Where each of the file's tensors ends, by that."""
        tensors = open_file(file, self._manifest)
        with file.open("rb") as opened:
            begin = _LENGTH_BYTES + int.from_bytes(opened.read(_LENGTH_BYTES), "little")
            header = json.loads(opened.read(begin - _LENGTH_BYTES))
        ends = ((begin + header[name]["data_offsets"][1], name, tensor) for name, tensor in tensors.items())
        return deque(sorted(ends, key=lambda one: one[0]))

    def _checked(self, name: str, tensor: Tensor) -> None:
        check_digest(name, tensor, self._manifest)
        self._use(name, tensor)

    def _raise_failed(self) -> None:
        with self._taking:
            while self._tasks and self._tasks[0].done():
                self._tasks.popleft().result()


def _has_header(file: Path, count: int) -> bool:
    if count < _LENGTH_BYTES or file.suffix != ".safetensors":
        return False
    with file.open("rb") as opened:
        return count >= _LENGTH_BYTES + int.from_bytes(opened.read(_LENGTH_BYTES), "little")
