"""What a rank does in the tests of shared versions; importable by spawned processes."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from echorl_core.identity import RunIdentity
from echorl_core.names import HEADER_TOKEN
from echorl_core.run_token import weights_key
from echorl_core.rundir import RunDirectory
from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import PolicyAnnouncement
from echorl_testing.trainer.batches import RUN_UID
from echorl_testing.trainer.tiny_learner import tiny_learner
from echorl_testing.trainer.trainer_processes import trainer_config
from echorl_trainer.broadcast import Broadcaster
from echorl_trainer.exports import Exporter
from echorl_trainer.health import Health
from echorl_trainer.parallel import Ranks, connect, disconnect
from echorl_trainer.publication import Publication
from echorl_trainer.publish import Publisher
from echorl_trainer.rank import broadcaster_of
from echorl_trainer.server import Server
from echorl_trainer.sharing import sharers_of
from echorl_trainer.state import TrainState
from echorl_trainer.step import NonFinite
from echorl_trainer.weights import MemoryStore
from echorl_vllm.downloads import Limits
from echorl_vllm.reception import Reception
from echorl_vllm.spool import fetch, locked, read_manifest

_KEY = weights_key("secret")
_DEADLINE_S = 60.0


@dataclass
class Rank:
    """One rank's parts, as rank.py puts them together."""

    ranks: Ranks
    state: TrainState
    publisher: Publisher
    exporter: Exporter | None

    def publish(self, version: int) -> PolicyAnnouncement | None:
        """Publish what the policy holds, and on ranks with a part of it wait until it is visible."""
        publication = self.publisher.begin(version)
        if publication is None:
            return None
        if self.exporter is not None:
            self.exporter.begin(publication)
        return publication.result()

    def change(self, by: float) -> None:
        """Add to the last norm, of which each rank has some rows; the rest stays as it is."""
        with torch.no_grad():
            self.state.policy.model.model.norm.weight.add_(by)


@contextmanager
def rank_of(model: Path, run: Path, replicate: int, *, broadcast: bool = False) -> Iterator[Rank]:
    """A rank that publishes over HTTP, and if so by broadcast, with others where there are some in its replica."""
    ranks = connect(replicate, "cpu", _DEADLINE_S)
    try:
        health, identity = Health(step_timeout_s=_DEADLINE_S), RunIdentity("test", RUN_UID, 1)
        server = Server(identity, ranks.rank, health, weights_key=_KEY)
        port = server.start("127.0.0.1", 0)
        learner = tiny_learner(ranks, model)
        sharers, exporters = (sharers_of(ranks.rank, ranks.replica_size, timeout_s=_DEADLINE_S) for _ in range(2))
        store = None
        if sharers is not None:
            store = server.weights = MemoryStore(1, f"http://127.0.0.1:{port}")
        broadcaster = None
        if broadcast and sharers is not None:
            config = trainer_config(RunDirectory(run), model, "http://127.0.0.1:9")
            broadcaster = broadcaster_of(config, ranks, health, sharers, attempt=1)
            server.broadcasts = broadcaster if isinstance(broadcaster, Broadcaster) else None
        publisher = Publisher(
            learner.state.policy,
            ranks,
            identity,
            probe_token_ids=[1, 2, 3],
            store=store,
            watch=health.watch,
            deadline_s=_DEADLINE_S,
            broadcaster=broadcaster,
            sharers=sharers,
        )
        exporter = None
        if exporters is not None:
            exporter = Exporter(
                RunDirectory(run), model, every=2, keep_last=2, health=health, deadline_s=_DEADLINE_S, sharers=exporters
            )
        yield Rank(ranks, learner.state, publisher, exporter)
        if exporter is not None:
            exporter.wait()
        dist.barrier()
    finally:
        disconnect()


def limits() -> Limits:
    """Of a fetch."""
    return Limits(time.monotonic() + _DEADLINE_S)


def stage_request(announced: PolicyAnnouncement) -> StageRequest:
    """What an engine is told of a version."""
    return StageRequest(
        attempt=announced.attempt, version=announced.version, url=announced.url, digest=announced.digest, deadline_s=60
    )


def fetched(spool: Path, announced: PolicyAnnouncement) -> dict[str, Any]:
    """What an engine's host gets of a version, and how."""
    with locked(spool, limits()):
        found = fetch(spool, stage_request(announced), run_uid=RUN_UID, headers={HEADER_TOKEN: _KEY}, limits=limits())
    return {
        "tensors": {name: (one.dtype, one.shape, one.xxh3) for name, one in found.manifest.tensors.items()},
        "folders": [one.folder for one in found.manifest.files],
        "sizes": [one.size for one in found.manifest.files],
        "parts": [] if found.manifest.delta is None else [one.size for one in found.manifest.delta.parts],
        "delta": found.delta,
        "received": found.received_bytes,
        "probe": None if announced.probe is None else announced.probe.logprobs,
        "ratio": None if announced.delta is None else announced.delta.changed_ratio,
    }


def three_versions(model: Path, run: Path, replicate: int = 1) -> list[dict[str, Any]]:
    """Publish three versions, of which the second has changed little and the third all; rank 0 fetches each."""
    found = []
    with rank_of(model, run, replicate) as rank:
        for version in range(3):
            if version == 1:
                rank.change(0.5)
            if version == 2:
                with torch.no_grad():
                    for one in rank.state.policy.parameters():
                        one.mul_(1.5)
            announced = rank.publish(version)
            if rank.ranks.rank == 0:
                assert announced is not None
                found.append(fetched(run / "spool", announced))
            dist.barrier()
    return found


def received(model: Path, run: Path) -> list[tuple[bool, int]]:
    """Versions by broadcast to a worker beside rank 0: whether all came, digests checked, and from how many ranks."""
    found, reception = [], Reception()
    with rank_of(model, run, 1, broadcast=True) as rank:
        for version in (1, 2, 3):
            rank.change(1.0)
            announced = rank.publish(version)
            if announced is not None and rank.ranks.rank == 0:
                assert announced.broadcast
                assert announced.delta is None
                request, headers = stage_request(announced), {HEADER_TOKEN: _KEY}
                manifest, _ = read_manifest(request, run_uid=RUN_UID, headers=headers, limits=limits())
                tensors = reception.receive(request, manifest, headers, limits(), torch.device("cpu"))
                found.append((tensors.keys() == manifest.tensors.keys(), len({one.folder for one in manifest.files})))
            dist.barrier()
    return found


class Leaving(Exception):
    """A rank ends without a word to the others."""


def one_is_lost(model: Path, run: Path) -> tuple[str, str, list[str]] | None:
    """Rank 1 ends after a version was published. Of rank 0: rank 1's address, what a fetch says, what the spool has."""
    found = None
    with suppress(Leaving), rank_of(model, run, 1) as rank:
        announced = rank.publish(1)
        if rank.ranks.rank == 0:
            assert announced is not None
            manifest, _ = read_manifest(
                stage_request(announced), run_uid=RUN_UID, headers={HEADER_TOKEN: _KEY}, limits=limits()
            )
            (folder,) = {one.folder for one in manifest.files if one.folder is not None}
            assert is_gone(folder)
            try:
                fetched(run / "spool", announced)
            except ConnectionError as error:
                found = folder, str(error), [one.name for one in (run / "spool").iterdir() if one.is_dir()]
        raise Leaving
    return found


def poisoned(model: Path, run: Path) -> str:
    """A NaN in a file of the last rank: what each rank says of the version."""
    with rank_of(model, run, 1) as rank:
        rank.change(float("nan") if rank.ranks.rank == rank.ranks.world_size - 1 else 0.0)
        publication: Publication | None = rank.publisher.begin(1)
        assert publication is not None
        try:
            publication.result()
        except NonFinite as error:
            return str(error)
        return "published"


def is_gone(folder: str) -> bool:
    """Whether nobody listens there, within a deadline."""
    address = urlsplit(folder)
    until = time.monotonic() + _DEADLINE_S
    while time.monotonic() < until:
        try:
            socket.create_connection((str(address.hostname), int(address.port or 0)), 1.0).close()
        except ConnectionRefusedError:
            return True
        except OSError:
            continue  # its process is ending
    return False
