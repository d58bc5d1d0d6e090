"""One download of published weights per engine host, checked, in a folder that the host's workers share.

``<spool>/<digest>/`` holds the manifest and its safetensors files. It appears complete or not at all. The holder of the
spool's lock removes every other digest: what is mapped into memory stays readable after its file is gone.
"""

import fcntl
import hashlib
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import BinaryIO, Protocol
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import WeightManifest, decode
from echorl_vllm.validation import WeightsRefusedError, check_digests, check_manifest, open_tensors

MANIFEST = "manifest.json"
_BLOCK = 4 << 20
_MAX_MANIFEST_BYTES = 64 << 20
_SOCKET_TIMEOUT_S = 10.0
_LOCK_POLL_S = 0.02


class StageAbortedError(RuntimeError):
    """The stage was given up: aborted, or a newer one took its place."""


@dataclass
class Limits:
    """When a stage must stop: at its deadline, or when it is cancelled."""

    deadline: float
    """When the download must be done, on the clock of ``time.monotonic``."""
    cancelled: Event = field(default_factory=Event)

    def check(self, doing: str) -> float:
        """Seconds that are left.

        Raises:
            TimeoutError: none are.
            StageAbortedError: the stage was cancelled.
        """
        if self.cancelled.is_set():
            raise StageAbortedError(f"aborted while {doing}")
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"deadline passed while {doing}")
        return left


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the run's token elsewhere."""

    def redirect_request(self, *_: object) -> None:
        """Refuse: urllib then raises the 3xx answer as an error."""


@contextmanager
def _opened(url: str, headers: Mapping[str, str], limits: Limits) -> Iterator[_Reader]:
    left = limits.check(f"opening {url}")
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            yield file
        return
    if parts.scheme != "http":
        raise WeightsRefusedError(f"{url}: accepted are http:// and file:// addresses")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - the scheme was checked
    try:
        with opener.open(request, timeout=min(_SOCKET_TIMEOUT_S, left)) as response:
            yield response
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(500).decode(errors="replace").strip()
        raise WeightsRefusedError(f"{url}: HTTP {error.code} {reason}") from None


def _copy(source: _Reader, target: BinaryIO, *, size: int, name: str, limits: Limits) -> None:
    """Copy exactly ``size`` bytes."""
    done = 0
    while block := source.read(_BLOCK):
        limits.check(f"downloading {name}")
        done += len(block)
        if done > size:
            raise WeightsRefusedError(f"{name}: longer than the {size} bytes of the weight manifest")
        target.write(block)
    if done != size:
        raise WeightsRefusedError(f"{name}: {done} bytes, the weight manifest says {size}")


def _read_manifest(request: StageRequest, headers: Mapping[str, str], limits: Limits) -> bytes:
    with _opened(request.url, headers, limits) as source:
        blocks, size = [], 0
        while block := source.read(_BLOCK):
            limits.check("downloading the weight manifest")
            blocks.append(block)
            size += len(block)
            if size > _MAX_MANIFEST_BYTES:
                raise WeightsRefusedError(f"{request.url}: more than {_MAX_MANIFEST_BYTES} bytes, no weight manifest")
    data = b"".join(blocks)
    digest = hashlib.sha256(data).hexdigest()
    if digest != request.digest:
        raise WeightsRefusedError(f"{request.url}: sha256 is {digest}, announced was {request.digest}")
    return data


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


def fetch(
    spool: Path, request: StageRequest, *, run_uid: str | None, headers: Mapping[str, str], limits: Limits
) -> tuple[Path, WeightManifest]:
    """Bring a published version into the spool (the caller holds its lock) and return its folder and manifest.

    Raises:
        WeightsRefusedError: wrong checksum, size, run, attempt or version; or the publisher refused.
        TimeoutError: the deadline passed.
        OSError: the publisher cannot be reached, or the spool cannot be written.
    """
    if len(request.digest) != 64 or not set(request.digest) <= set("0123456789abcdef"):
        raise WeightsRefusedError(f"digest {request.digest!r}: accepted is a sha256 in lower-case hex")
    for stale in spool.iterdir():
        if stale.is_dir() and stale.name != request.digest:
            shutil.rmtree(stale, ignore_errors=True)
    folder = spool / request.digest
    if folder.is_dir():
        manifest = decode((folder / MANIFEST).read_bytes(), WeightManifest)
        check_manifest(manifest, run_uid=run_uid, attempt=request.attempt, version=request.version)
        return folder, manifest
    data = _read_manifest(request, headers, limits)
    try:
        manifest = decode(data, WeightManifest)
    except msgspec.DecodeError as error:
        raise WeightsRefusedError(f"{request.url}: not a weight manifest of ours: {error}") from error
    check_manifest(manifest, run_uid=run_uid, attempt=request.attempt, version=request.version)
    partial = spool / f".{request.digest}.{os.getpid()}.partial"
    partial.mkdir()
    try:
        (partial / MANIFEST).write_bytes(data)
        for file in manifest.files:
            with (
                _opened(urljoin(request.url, file.name), headers, limits) as source,
                (partial / file.name).open("wb") as to,
            ):
                _copy(source, to, size=file.size, name=file.name, limits=limits)
        limits.check("checking digests")
        check_digests(open_tensors(partial, manifest), manifest)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, manifest
