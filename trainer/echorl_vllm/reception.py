"""A worker's part of a broadcast: it asks the trainer for a seat and receives a version into host memory.

Whatever goes wrong, nothing of it is used: the worker leaves the group, and the version is fetched over HTTP.
"""

import logging
import secrets
import threading
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

import msgspec
import torch
from torch import Tensor

from echorl_collective.group import BroadcastGroup, GroupError, gpu_of, library_of, store_at
from echorl_core.faults import fault_point
from echorl_core.wire.broadcast import JoinRequest, Seat
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import WeightManifest
from echorl_vllm.downloads import Limits, posted
from echorl_vllm.validation import WeightsRefusedError, check_digests

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.reception")

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BUSY_S = 0.05


class NotReceivedError(RuntimeError):
    """The version did not come by broadcast, and may be had over HTTP; the text says why."""


class Reception:
    """The group that one worker is in, from version to version."""

    def __init__(self) -> None:
        self._worker = secrets.token_hex(8)
        self._group: BroadcastGroup | None = None
        self._turn = threading.Lock()

    def receive(
        self,
        request: StageRequest,
        manifest: WeightManifest,
        headers: Mapping[str, str],
        limits: Limits,
        device: torch.device,
    ) -> dict[str, Tensor]:
        """The tensors of the version, in host memory, checked.

        Raises:
            NotReceivedError: there was no seat, or the broadcast failed, or brought something else.
            TimeoutError: the deadline passed.
            StageAbortedError: the stage was cancelled.
        """
        while not self._turn.acquire(timeout=_BUSY_S):
            limits.check("waiting for the broadcast of another version")
        try:
            flats, tensors = _room(manifest, pinned=device.type == "cuda")
            seat = self._seat(request, headers, limits, device)
            self._fill(flats, seat, urlsplit(request.url).hostname or "", device)
            limits.check("checking digests")
            check_digests(tensors, manifest)
        except GroupError as error:
            self._leave()
            raise NotReceivedError(str(error)) from error
        except WeightsRefusedError as error:
            self._leave()
            raise NotReceivedError(f"what was broadcast is refused: {error}") from error
        finally:
            self._turn.release()
        return tensors

    def _seat(self, request: StageRequest, headers: Mapping[str, str], limits: Limits, device: torch.device) -> Seat:
        asked = JoinRequest(
            worker=self._worker,
            device="cuda" if device.type == "cuda" else "cpu",
            gpu=gpu_of(device),
            library=library_of(device),
            group=None if self._group is None else self._group.name,
        )
        try:
            answer = posted(urljoin(request.url, "join"), msgspec.json.encode(asked), headers, limits)
            return msgspec.json.decode(answer, type=Seat)
        except (WeightsRefusedError, OSError, msgspec.DecodeError) as error:
            raise NotReceivedError(f"no seat: {error}") from error

    def _fill(self, flats: list[Tensor], seat: Seat, host: str, device: torch.device) -> None:
        if self._group is not None and self._group.name != seat.group:
            self._leave()
        if self._group is None:
            self._group = BroadcastGroup(seat, store_at(host, seat.port), device)
        self._group.broadcast(flats, seat, lambda: fault_point("engine.mid_broadcast"))

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _room(manifest: WeightManifest, *, pinned: bool) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Memory for what follows each file's header, and the tensors in it: they lie there in the manifest's order."""
    flats: list[Tensor] = []
    tensors: dict[str, Tensor] = {}
    for file in manifest.files:
        infos = {name: info for name, info in manifest.tensors.items() if info.file == file.name}
        sizes = [_DTYPES[info.dtype].itemsize * torch.Size(info.shape).numel() for info in infos.values()]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
        flats.append(flat)
        for (name, info), part in zip(infos.items(), torch.split(flat, sizes), strict=True):
            tensors[name] = part.view(_DTYPES[info.dtype]).view(info.shape)
    return flats, tensors
