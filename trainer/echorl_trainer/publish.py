"""Publishes policy versions: the loop stops for a copy to host memory, and a thread does the rest.

    begin(version)   all ranks: parameters to a snapshot; nothing waits for the device
    probe()          all ranks: the probe's forward, at once or beside the next step; the weights are still the same
    thread, rank 0   wait for the copy -> are all values finite? -> hash, delta -> the probe -> visible -> announced

Several ranks may share a version (sharing.py): each has some of its files and such a thread, and rank 0's makes the
manifest of what all tell. Mode ``http``: server.py serves the snapshot from memory; ``nccl``: broadcast.py and
part_sender.py send it, too. Mode ``disk``: it is written under ``RUN/broadcasts``. A version that cannot be published
is a failure of the thread, which the loop meets at its next step; nothing that waits for the version (its
announcement, its checkpoint) comes to pass then.
"""

import hashlib
import math
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from urllib.parse import urljoin

import msgspec
from torch import Tensor

from echorl_core.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, config_json
from echorl_core.config import Quantization
from echorl_core.faults import fault_point
from echorl_core.identity import RunIdentity
from echorl_core.wire.weights import (
    DeltaSize,
    PolicyAnnouncement,
    PolicyId,
    Probe,
    TensorInfo,
    WeightFile,
    WeightManifest,
)
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.comparing import Comparer, Compares, ComparingProcess
from echorl_trainer.copier import Arrival, Copier
from echorl_trainer.health import Watch
from echorl_trainer.host_files import DTYPES, FILE_BYTES, WEIGHTS, file_layouts
from echorl_trainer.lora import published_parameters
from echorl_trainer.model import Policy
from echorl_trainer.parallel import Ranks
from echorl_trainer.part_sender import PartSender
from echorl_trainer.probe import FP8_PROBE_TOLERANCE, PROBE_TOLERANCE, probe_scores, probe_tokens
from echorl_trainer.publication import Publication, not_finite
from echorl_trainer.sharing import Share, Sharers, changed_ratio, dealt, file_bytes, joined
from echorl_trainer.snapshots import Snapshot, Snapshots
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import WeightStore


class Publisher:
    """Publishes versions of one policy; every rank holds one and calls ``begin`` and ``probe`` in the same order."""

    def __init__(
        self,
        policy: Policy,
        ranks: Ranks,
        identity: RunIdentity,
        *,
        probe_token_ids: list[int],
        store: WeightStore | None,
        watch: Watch,
        deadline_s: float = 600.0,
        deltas: bool = True,
        broadcaster: Broadcaster | PartSender | None = None,
        engine_quantization: Quantization | None = None,
        sharers: Sharers | None = None,
        compares_beside: bool | None = None,
    ) -> None:
        """``store``: on ranks that have files of a version; None elsewhere. ``sharers``: these ranks; None: the first.

        ``deadline_s`` bounds the wait for memory, and for a publication.

        ``deltas``: whether a version is published as what it changed, too, where that is little; of adapters none is,
        nor of what a ``broadcaster`` sends, which adapters never are. ``engine_quantization``: how engines hold the
        weights; by that they may be further from the probe's logprobs.

        ``compares_beside``: versions are hashed and compared in a process of their own; None: on GPUs, where the loop
        launches kernels meanwhile, but for adapters, which are small.
        """
        self._policy, self._ranks, self._identity = policy, ranks, identity
        self._probe_token_ids, self._probe_tokens = probe_token_ids, probe_tokens(ranks, probe_token_ids)
        self._store, self._watch, self._deadline_s = store, watch, deadline_s
        self._tolerance = PROBE_TOLERANCE[policy.dtype] if engine_quantization is None else FP8_PROBE_TOLERANCE
        adapter = policy.adapter
        self._broadcaster = broadcaster if adapter is None else None
        self._deltas = deltas and adapter is None and broadcaster is None
        self._unprobed: Callable[[Arrival], None] | None = None
        """What is to be told of the probe of the version begun last, on every rank; None: it was launched."""
        self._before: Snapshot | None = None
        """The version before, whose memory the thread uses: until the next one was compared with it, and where ranks
        share versions until that one is visible, as before there is no other that can be read at all of them."""
        self._base: PolicyId | None = None
        """What it is, on the first rank."""
        self._sharers = sharers or Sharers()
        shapes = {name: tuple(one.shape) for name, one in published_parameters(policy).items()}
        total = sum(math.prod(shape) for shape in shapes.values()) * policy.dtype.itemsize
        self._layouts = file_layouts(
            shapes,
            policy.dtype,
            single_name=WEIGHTS if adapter is None else ADAPTER_WEIGHTS,
            file_bytes=file_bytes(total, self._sharers.size, FILE_BYTES) if adapter is None else sys.maxsize,
        )
        self._copier = Copier(self._layouts, ranks.device)
        self._snapshots: Snapshots | None = None
        self._pending: queue.Queue[Publication] = queue.Queue()
        if store is not None:
            small = {} if adapter is None else {ADAPTER_CONFIG: config_json(adapter.config)}
            owners = dealt([layout.size for layout in self._layouts], self._sharers.size)
            own = [one for one, owner in zip(self._layouts, owners, strict=True) if owner == self._sharers.index]
            whole = self._layouts if self._sharers.is_first else ()
            on_gpu = ranks.device.type == "cuda"
            self._snapshots = Snapshots(own, small, pinned=on_gpu, whole=whole)
            beside = on_gpu and adapter is None if compares_beside is None else compares_beside
            mapped = self._snapshots.mapped()
            self._compare: Compares = ComparingProcess(mapped, deadline_s=deadline_s) if beside else Comparer(mapped)
            watch.thread("publisher", self._work)
        self.on_visible: Callable[[PolicyAnnouncement, float], None] = lambda _announcement, _seconds: None
        """Called in the first rank's thread with what is visible now, and the seconds since ``begin``."""

    def begin(self, version: int, *, probe: bool = True) -> Publication | None:
        """Copy what the policy holds and publish it as ``version``; collective. None but on ranks with a store.

        ``probe``: at once. Without it the version is not visible before ``probe`` was called, while the policy still
        holds it.

        Raises:
            TimeoutError: readers or writers of older versions kept their memory beyond the deadline.
            Exception: what failed in a background thread before.
        """
        self._watch.check()
        began = time.monotonic()
        snapshot = None
        if self._snapshots is not None:
            snapshot = self._snapshots.take(version, timeout_s=self._deadline_s, check=self._watch.check)
        bounds = self._copier.copy(published_parameters(self._policy), snapshot)
        gathered = time.monotonic()
        publication = None
        self._unprobed = lambda _: None
        if snapshot is not None:
            publication = Publication(snapshot, self._copier.arrival(bounds), deadline_s=self._deadline_s)
            publication.began, publication.seconds_gather = began, gathered - began
            self._unprobed = publication.probe.set_result
            self._pending.put(publication)
        if probe:
            self.probe()
        return publication

    @property
    def is_unprobed(self) -> bool:
        """Whether the version that was begun last still waits for its probe; on all ranks alike."""
        return self._unprobed is not None

    def probe(self) -> None:
        """Launch the probe of the version that was begun last, which the policy holds; collective. Again: nothing."""
        if self._unprobed is None:
            return
        told, self._unprobed = self._unprobed, None
        told(self._copier.arrival(probe_scores(self._policy, self._probe_tokens)))

    def _work(self) -> None:
        while True:
            publication = self._pending.get()
            try:
                announcement = self._published(publication)
                if self._sharers.is_first:
                    self.on_visible(announcement, time.monotonic() - publication.began)
                    fault_point("trainer.published")
            except BaseException as error:
                publication.outcome.set_exception(error)
                raise
            finally:
                publication.snapshot.release()
            publication.outcome.set_result(announcement)

    def _published(self, publication: Publication) -> PolicyAnnouncement:
        version, snapshot = publication.version, publication.snapshot
        (bounds,) = publication.arrival.wait()
        shares = self._sharers.exchanged(self._share(snapshot, bounds))
        for share in shares:
            if share.problem is not None:
                raise NonFinite(f"policy version {version}: {share.problem}; it is not published")
        if any(share.delta is None for share in shares):
            snapshot.has_delta = False
        announced = self._shown(publication, shares) if self._sharers.is_first else None
        (announcement,) = (one for one in self._sharers.exchanged(announced) if one is not None)
        self._let_go()
        if self._deltas or self._sharers.size > 1:
            snapshot.use()
            self._before, self._base = snapshot, announcement.policy
        return announcement

    def _share(self, snapshot: Snapshot, bounds: Tensor) -> Share:
        """This rank's part, which can be read then, if another rank's manifest will name it."""
        assert self._store is not None  # noqa: S101 - the thread runs on ranks with a store
        if not bool(bounds.isfinite().all()):
            return Share(problem=not_finite(snapshot))
        base = self._before if self._deltas else None
        found = self._compare(snapshot.number, None if base is None else base.number)
        snapshot.has_delta = found.delta is not None
        if self._sharers.size == 1:
            self._let_go()
        folder = None
        if not self._sharers.is_first:
            folder = urljoin(self._store.url(snapshot.version), ".")
            self._store.show(snapshot, b"")
            if self._broadcaster is not None:
                self._broadcaster.offer(snapshot)
        names = tuple(file.layout.name for file in snapshot.files)
        return Share(folder, names, _described(snapshot, found.digests), found.delta)

    def _shown(self, publication: Publication, shares: Sequence[Share]) -> PolicyAnnouncement:
        """Make the version visible; what to announce."""
        assert self._store is not None  # noqa: S101 - called on the first rank alone
        version, snapshot = publication.version, publication.snapshot
        delta = None if self._base is None else joined(self._base, shares)
        folders = {name: share.folder for share in shares for name in share.files}
        tensors = {name: info for share in shares for name, info in (share.tensors or {}).items()}
        kind: Literal["full", "adapter"] = "full" if self._policy.adapter is None else "adapter"
        manifest = msgspec.json.encode(
            WeightManifest(
                run_uid=self._identity.uid,
                attempt=self._identity.attempt,
                version=version,
                kind=kind,
                files=[
                    *(WeightFile(name=one.name, size=one.size, folder=folders[one.name]) for one in self._layouts),
                    *(WeightFile(name=name, size=len(data)) for name, data in snapshot.small.items()),
                ],
                tensors={name: tensors[name] for layout in self._layouts for name in layout.shapes},
                delta=delta,
            )
        )
        scores = publication.probed()
        if not bool(scores.isfinite().all()):
            raise NonFinite(f"probe of policy version {version}: logprobs are not finite; it is not published")
        self._store.show(snapshot, manifest)
        if self._broadcaster is not None:
            self._broadcaster.offer(snapshot)
        return PolicyAnnouncement(
            attempt=self._identity.attempt,
            version=version,
            kind=kind,
            digest=hashlib.sha256(manifest).hexdigest(),
            url=self._store.url(version),
            size_bytes=sum(layout.size for layout in self._layouts) + sum(map(len, snapshot.small.values())),
            seconds_gather=publication.seconds_gather,
            probe=Probe(
                token_ids=self._probe_token_ids,
                logprobs=scores.tolist(),
                tolerance=self._tolerance,
            ),
            delta=None
            if delta is None
            else DeltaSize(
                base_version=delta.base.version,
                size_bytes=delta.size,
                changed_ratio=changed_ratio(share.delta for share in shares if share.delta is not None),
            ),
            broadcast=self._broadcaster is not None,
        )

    def _let_go(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            before.release()


def _described(snapshot: Snapshot, digests: Mapping[str, str]) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(dtype=DTYPES[file.layout.dtype], shape=list(shape), file=file.layout.name, xxh3=digests[name])
        for file in snapshot.files
        for name, shape in file.layout.shapes.items()
    }
