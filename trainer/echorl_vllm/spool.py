"""One download of published weights per engine host, checked, in a folder that the host's workers share.

``<spool>/<digest>/`` holds the manifest and its safetensors files. It appears complete or not at all. The holder of the
spool's lock removes every other digest: what is mapped into memory stays readable after its file is gone.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from echorl_core.wire.engine import StageRequest
from echorl_core.wire.weights import WeightManifest, decode
from echorl_vllm.download import PART_BYTES, Download, Limits, opened
from echorl_vllm.validation import WeightsRefusedError, check_digests, check_manifest, open_tensors

MANIFEST = "manifest.json"
_BLOCK = 4 << 20
_MAX_MANIFEST_BYTES = 64 << 20
_LOCK_POLL_S = 0.02


def _read_manifest(request: StageRequest, headers: Mapping[str, str], limits: Limits) -> bytes:
    with opened(request.url, headers, limits) as source:
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
    spool: Path,
    request: StageRequest,
    *,
    run_uid: str | None,
    headers: Mapping[str, str],
    limits: Limits,
    part_bytes: int = PART_BYTES,
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
        Download(request.url, headers, limits).run(manifest.files, partial, part_bytes=part_bytes)
        limits.check("checking digests")
        check_digests(open_tensors(partial, manifest), manifest)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, manifest
