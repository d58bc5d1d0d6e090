"""One download of published weights per engine host, checked, in a folder that the host's workers share.

``<spool>/<digest>/`` holds the manifest and its safetensors files. It appears complete or not at all. The holder of the
spool's lock removes every other digest: what is mapped into memory stays readable after its file is gone. One that the
next version is a delta from is made into it; whatever goes wrong with that, the version is fetched as a whole. Of such
a version every tensor is checked, and may be used, while later ones arrive, and it takes the place of one that nobody
reads any more: memory that is there already is written to in half the time.
"""

import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

import msgspec

from echorl_core.wire.engine import DeltaUse, StageRequest
from echorl_core.wire.weights import DELTA_FILE, DeltaPart, WeightDelta, WeightManifest, decode
from echorl_vllm.arrivals import Arrivals, Use
from echorl_vllm.downloads import Limits, Wanted, download_all, received
from echorl_vllm.rebuilding import MANIFEST, rebuild
from echorl_vllm.unread import is_unread
from echorl_vllm.validation import WeightsRefusedError, check_digests, check_manifest, open_tensors

# Below vLLM's logger, so that its handler and format are used.
log = logging.getLogger("vllm.echorl.spool")

_MAX_MANIFEST_BYTES = 64 << 20
_LOCK_POLL_S = 0.02
_NO_DELTA: DeltaUse = "none"


def _downloaded_manifest(request: StageRequest, headers: Mapping[str, str], limits: Limits) -> bytes:
    data = received(request.url, headers, limits, at_most=_MAX_MANIFEST_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    if digest != request.digest:
        raise WeightsRefusedError(f"{request.url}: sha256 is {digest}, announced was {request.digest}")
    return data


def read_manifest(
    request: StageRequest, *, run_uid: str | None, headers: Mapping[str, str], limits: Limits
) -> tuple[WeightManifest, bytes]:
    """A version's manifest, checked, and its bytes. Raises as ``fetch``."""
    data = _downloaded_manifest(request, headers, limits)
    try:
        manifest = decode(data, WeightManifest)
    except msgspec.DecodeError as error:
        raise WeightsRefusedError(f"{request.url}: not a weight manifest of ours: {error}") from error
    check_manifest(manifest, run_uid=run_uid, attempt=request.attempt, version=request.version)
    return manifest, data


@contextmanager
def locked(spool: Path, limits: Limits) -> Iterator[None]:
    """Hold the spool's lock; it is released when the process dies, however it dies."""
    spool.mkdir(parents=True, exist_ok=True)
    with (spool / ".lock").open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                limits.check("waiting for another worker's download")
                limits.cancelled.wait(_LOCK_POLL_S)
        yield


@dataclass(frozen=True)
class Fetched:
    """A version in the spool."""

    folder: Path
    manifest: WeightManifest
    received_bytes: int = 0
    """Of weights, for this call: 0 if the version was there."""
    delta: DeltaUse = "none"
    is_used: bool = False
    """Every tensor was handed on while the version came."""


@dataclass(frozen=True)
class _Source:
    """Where a version's files are had, and until when."""

    url: str
    """Of its manifest."""
    headers: Mapping[str, str]
    limits: Limits

    def bring_files(self, manifest: WeightManifest, into: Path, arrivals: Arrivals) -> int:
        """All files of the version, of which ``arrivals`` is told; their bytes."""
        beside = urljoin(self.url, ".")
        wanted = [
            Wanted(one.folder or beside, one.name, target, one.size, arrived=arrivals.of(target))
            for one in manifest.files
            for target in [into / one.name]
        ]
        return download_all(wanted, self.headers, self.limits)

    def bring_delta(self, delta: WeightDelta, into: Path) -> int:
        """Its file, put together of its parts if it has some; its bytes."""
        beside, first, wanted = urljoin(self.url, "."), 0, []
        for one in delta.parts or [DeltaPart(folder=None, size=delta.size)]:
            if one.size:
                wanted.append(Wanted(one.folder or beside, DELTA_FILE, into / DELTA_FILE, one.size, first, delta.size))
            first += one.size
        return download_all(wanted, self.headers, self.limits)


def fetch(
    spool: Path,
    request: StageRequest,
    *,
    run_uid: str | None,
    headers: Mapping[str, str],
    limits: Limits,
    accept: Callable[[WeightManifest], object] = lambda _: None,
    use: Use = lambda _name, _tensor: None,
) -> Fetched:
    """Bring a published version into the spool, whose lock the caller holds.

    ``accept``: refuses a version by raising, before any of it is fetched. ``use``: is given every tensor that was
    checked, in threads, while others come; not where the version was there, or is made from another one.

    Raises:
        WeightsRefusedError: wrong checksum, size, run, attempt or version; or the publisher refused.
        TimeoutError: the deadline passed.
        OSError: the publisher cannot be reached, or the spool cannot be written.
    """
    folder = _folder(spool, request.digest)
    if folder.is_dir():
        _remove_all_but(spool, folder)
        manifest = decode((folder / MANIFEST).read_bytes(), WeightManifest)
        check_manifest(manifest, run_uid=run_uid, attempt=request.attempt, version=request.version)
        accept(manifest)
        return Fetched(folder, manifest)
    manifest, data = read_manifest(request, run_uid=run_uid, headers=headers, limits=limits)
    accept(manifest)
    base = None if manifest.delta is None else _folder(spool, manifest.delta.base.digest)
    partial = spool / f".{request.digest}.{os.getpid()}.partial"
    try:
        _make_room(spool, partial, manifest, kept=base)
        source = _Source(request.url, headers, limits)
        received, delta_use = 0, _NO_DELTA
        if manifest.delta is not None and base is not None:
            received, delta_use = _from_base(base, partial, manifest, manifest.delta, source)
        if delta_use != "used":
            with Arrivals(manifest, use) as arrivals:
                received += source.bring_files(manifest, partial, arrivals)
                arrivals.wait(lambda: limits.check("checking digests"))
            open_tensors(partial, manifest)  # no tensor is missing
        (partial / MANIFEST).write_bytes(data)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Fetched(folder, manifest, received, delta_use, is_used=delta_use != "used")


def _from_base(
    base: Path, into: Path, manifest: WeightManifest, delta: WeightDelta, source: _Source
) -> tuple[int, DeltaUse]:
    """Make the version's files from the base's, if that is here and the delta is good; bytes that came for it."""
    if not base.is_dir():
        log.info("version %d is fetched whole: %s, that its delta is from, is not here", manifest.version, delta.base)
        return 0, "no_base"
    received = 0
    used_up = into.with_suffix(".base")
    try:
        if delta.size:
            received = source.bring_delta(delta, into)
        # What it is called now is no version's name: its files go one by one.
        base.rename(used_up)
        rebuild(used_up, into, manifest, delta)
        (into / DELTA_FILE).unlink(missing_ok=True)
        source.limits.check("checking digests")
        check_digests(open_tensors(into, manifest), manifest)
    except TimeoutError:
        raise
    except (WeightsRefusedError, OSError) as error:
        log.warning("version %d is fetched whole: its delta from %s: %s", manifest.version, delta.base, error)
        shutil.rmtree(base, ignore_errors=True)
        for file in into.iterdir():
            file.unlink()
        return received, "refused"
    finally:
        shutil.rmtree(used_up, ignore_errors=True)
    return received, "used"


def _folder(spool: Path, digest: str) -> Path:
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise WeightsRefusedError(f"digest {digest!r}: accepted is a sha256 in lower-case hex")
    return spool / digest


def _make_room(spool: Path, partial: Path, manifest: WeightManifest, *, kept: Path | None) -> None:
    """A folder for files that are to come. Those in it are of a version that nobody reads, and are overwritten."""
    names = {file.name for file in manifest.files if file.name.endswith(".safetensors")}
    for stale in [one for one in spool.iterdir() if one.is_dir() and one != kept]:
        if partial.exists() or not all(map(is_unread, stale.iterdir())):
            shutil.rmtree(stale, ignore_errors=True)
            continue
        stale.rename(partial)
        for file in partial.iterdir():
            if file.name not in names:
                file.unlink()
    partial.mkdir(exist_ok=True)


def _remove_all_but(spool: Path, kept: Path | None) -> None:
    for stale in spool.iterdir():
        if stale.is_dir() and stale != kept:
            shutil.rmtree(stale, ignore_errors=True)
