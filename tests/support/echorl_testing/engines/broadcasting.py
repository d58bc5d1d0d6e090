"""Ranks of a trainer as workers see them: versions in memory, served over HTTP and broadcast by gloo."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urljoin

import msgspec
import torch
from safetensors.torch import load_file

from echorl_collective.group import store_at
from echorl_core.identity import RunIdentity
from echorl_core.run_token import weights_key
from echorl_core.wire.broadcast import slices
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import TensorInfo, WeightFile, WeightManifest
from echorl_testing.engines.published import tensor_info
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.health import Health
from echorl_trainer.host_files import file_layouts
from echorl_trainer.part_sender import PartSender
from echorl_trainer.server import Server
from echorl_trainer.sharing import dealt
from echorl_trainer.snapshots import Snapshots
from echorl_trainer.weights import MemoryStore

SLICE = 4096


class BroadcastingTrainer:
    """Rank 0's server, memory and broadcaster; its versions are the model's tensors plus the version.

    With ``ranks`` 2 another one has a part of each version, in a thread where a process would be.
    """

    def __init__(
        self,
        model: Path,
        *,
        run_uid: str,
        token: str,
        files: int = 2,
        dtype: torch.dtype = torch.float32,
        ranks: int = 1,
        sends: bool = True,
    ) -> None:
        """``sends``: whether the other rank takes its part in broadcasts."""
        self._run_uid = run_uid
        self.tensors = {name: one.to(dtype) for name, one in load_file(model / "model.safetensors").items()}
        size = sum(one.nbytes for one in self.tensors.values())
        self.layouts = file_layouts(
            {name: tuple(one.shape) for name, one in self.tensors.items()},
            dtype,
            single_name="model.safetensors",
            file_bytes=size // files + 1,
        )
        owners = dealt([one.size for one in self.layouts], ranks)
        self.health = Health(step_timeout_s=60)
        self.snapshots, stores, servers = [], [], []
        for rank in range(ranks):
            own = [one for one, owner in zip(self.layouts, owners, strict=True) if owner == rank]
            self.snapshots.append(Snapshots(own, {}, pinned=False, whole=self.layouts if rank == 0 else ()))
            server = Server(RunIdentity("run", run_uid, 1), rank, self.health, weights_key=weights_key(token))
            store = server.weights = MemoryStore(1, f"http://127.0.0.1:{server.start('127.0.0.1', 0)}")
            servers.append(server)
            stores.append(store)
        self.store, self._others = stores[0], stores[1:]
        self.sent: list[int] = []
        self.after_sending: Callable[[], object] = lambda: None
        self.broadcaster = servers[0].broadcasts = Broadcaster(
            torch.device("cpu"),
            self.health.watch,
            attempt=1,
            sent=self._note,
            gather_s=1.0,
            slice_bytes=SLICE,
            timeout_s=3,
        )
        self.part_senders: list[PartSender] = []
        if ranks > 1:
            self.broadcaster.share([None] * ranks)
        for rank in range(1, ranks if sends else 1):
            told = store_at("127.0.0.1", self.broadcaster.port)
            self.part_senders.append(PartSender(torch.device("cpu"), self.health.watch, rank=rank, store=told))

    def _note(self, size: int) -> None:
        self.sent.append(size)
        self.after_sending()

    def values(self, version: int) -> dict[str, torch.Tensor]:
        """What a version holds."""
        return {name: one + version / 64 for name, one in self.tensors.items()}

    @property
    def num_slices(self) -> int:
        """Of a version's broadcast."""
        sizes = [sum(after - first for first, after in one.places.values()) for one in self.layouts]
        return sum(len(slices(size, SLICE)) for size in sizes)

    def publish(self, version: int, *, values_of: int | None = None) -> StageRequest:
        """The whole of what publish.py does with a snapshot that has arrived; the body of a stage call.

        ``values_of``: the version whose values it has; None: its own.
        """
        values = self.values(version if values_of is None else values_of)
        taken = [one.take(version, timeout_s=10, check=self.health.watch.check) for one in self.snapshots]
        infos: dict[str, TensorInfo] = {}
        folders: dict[str, str | None] = {}
        for snapshot, store in zip(taken, [None, *self._others], strict=True):
            for file in snapshot.files:
                folders[file.layout.name] = None if store is None else urljoin(store.url(version), ".")
                for name, tensor in file.tensors().items():
                    tensor.copy_(values[name])
                    infos[name] = tensor_info(tensor, file.layout.name)
        for snapshot, store in zip(taken[1:], self._others, strict=True):
            store.show(snapshot, b"")
            for sender in self.part_senders:
                sender.offer(snapshot)
        listed = [WeightFile(name=one.name, size=one.size, folder=folders[one.name]) for one in self.layouts]
        infos = {name: infos[name] for one in self.layouts for name in one.shapes}
        manifest = msgspec.json.encode(
            WeightManifest(run_uid=self._run_uid, attempt=1, version=version, files=listed, tensors=infos)
        )
        self.newest = taken[0]
        self.store.show(taken[0], manifest)
        self.broadcaster.offer(taken[0])
        for snapshot in taken:
            snapshot.release()
        return StageRequest(
            attempt=1,
            version=version,
            url=self.store.url(version),
            digest=hashlib.sha256(manifest).hexdigest(),
            deadline_s=60,
            broadcast=True,
        )
