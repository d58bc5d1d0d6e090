"""A worker's staging over http://, from a file server like rank 0's."""

import asyncio
import hashlib
import threading
from contextlib import asynccontextmanager

import pytest
import torch
from aiohttp import web
from msgspec.structs import replace

from echorl_core.run_token import weights_key
from echorl_core.wire.weights import DeltaPart, PolicyId, WeightManifest, decode
from echorl_testing.engines.published import add_delta, published_tensors, write_manifest
from echorl_testing.engines.staging_worker import RUN, Worker, published


class Publisher:
    """Rank 0's file server."""

    def __init__(self, folder):
        self.folder = folder
        self.requests = []
        self.stall = threading.Event()
        self.stalling = self.hanging_up = False

    async def serve(self, request):
        name = request.match_info["name"]
        self.requests.append((name, request.headers))
        if name == "moved.json":
            raise web.HTTPFound("/manifest.json")
        if not (self.folder / name).exists() and name != "endless.json":
            raise web.HTTPNotFound(text="only the newest two versions are kept")
        data = (self.folder / name.replace("endless", "manifest")).read_bytes()
        if name == "endless.json":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(data)
            return response
        if not (self.stalling or self.hanging_up) or name == "manifest.json":
            return web.Response(body=data)
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[: len(data) // 2])
        if self.hanging_up:
            request.transport.close()
            return response
        await asyncio.to_thread(self.stall.wait, 10)
        return response


@asynccontextmanager
async def serving(folder):
    served = Publisher(folder)
    app = web.Application()
    app.router.add_get("/{name}", served.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    served.stall.set()
    await runner.cleanup()


@pytest.fixture
async def publisher(environment):
    async with serving(environment / "p") as served:
        yield served


async def test_http_downloads_once_for_all_workers_of_a_host(model, environment, publisher):
    digest = published(model, environment / "p")
    workers = [Worker(model) for _ in range(3)]
    for worker in workers:
        worker.stage(None, digest, url=f"{publisher.url}/manifest.json")
    for worker in workers:
        status = await asyncio.to_thread(worker.settled)
        assert (status.state, status.error) == ("staged", None)
    names = [name for name, _ in publisher.requests]
    assert sorted(names) == ["manifest.json", "part-0.safetensors", "part-1.safetensors"]
    for _, headers in publisher.requests:
        assert (headers["X-Echorl-Run"], headers["X-Echorl-Attempt"]) == (RUN, "1")
        assert headers["X-Echorl-Token"] == weights_key("secret"), (
            "the address may be anybody's: never the token itself"
        )


async def test_http_refusals_are_told(worker, model, environment, publisher):
    digest = published(model, environment / "p")
    for url, message in [
        (f"{publisher.url}/gone.json", "HTTP 404 only the newest two versions are kept"),
        (f"{publisher.url}/moved.json", "HTTP 302"),
        (f"{publisher.url}/endless.json", "does not say its length"),
        ("http://127.0.0.1:9/manifest.json", "refused"),
        ("ftp://x/manifest.json", "accepted are http:// and file://"),
    ]:
        status = await asyncio.to_thread(worker.staged, None, digest, url=url)
        assert status.state == "failed"
        assert message in status.error


async def test_a_publisher_that_hangs_up_in_a_file_is_told(worker, model, environment, publisher):
    publisher.hanging_up = True
    digest = published(model, environment / "p")
    size = (environment / "p" / "part-0.safetensors").stat().st_size
    status = await asyncio.to_thread(worker.staged, None, digest, url=f"{publisher.url}/manifest.json")
    assert status.state == "failed"
    assert f"part-0.safetensors: {size // 2} bytes, the weight manifest says {size}" in status.error


async def test_a_stalled_download_ends_at_its_deadline(worker, model, environment, publisher):
    publisher.stalling = True
    digest = published(model, environment / "p")
    status = await asyncio.to_thread(worker.staged, None, digest, url=f"{publisher.url}/manifest.json", deadline_s=0.3)
    assert status.state == "failed"
    assert "timed out" in status.error or "deadline passed" in status.error


async def test_a_newer_version_takes_the_place_of_a_download(worker, model, environment, publisher):
    publisher.stalling = True
    digest = published(model, environment / "p")
    worker.stage(None, digest, url=f"{publisher.url}/manifest.json")
    newer = published(model, environment / "q", version=2)
    policy = worker.stage(environment / "q", newer, version=2)
    publisher.stall.set()
    status = await asyncio.to_thread(worker.settled)
    assert status.is_staged(policy)
    assert hashlib.sha256((environment / "q" / "manifest.json").read_bytes()).hexdigest() == newer


@pytest.fixture
async def other(environment):
    """Another rank, with files of its own."""
    async with serving(environment / "other") as served:
        yield served


def shared(model, folder, other, *, base=None):
    """A version of which the second file, and where there is a delta its second part, lie with ``other``."""
    published(model, folder, version=1 if base is None else 2, change=None if base is None else norms_changed)
    if base is not None:
        add_delta(folder, base)
    manifest = decode((folder / "manifest.json").read_bytes(), WeightManifest)
    address = f"{other.url}/"
    other.folder.mkdir(exist_ok=True)
    (folder / "part-1.safetensors").rename(other.folder / "part-1.safetensors")
    files = [replace(one, folder=address if one.name.startswith("part-1") else None) for one in manifest.files]
    delta = manifest.delta
    if delta is not None:
        data = (folder / "delta.bin").read_bytes()
        (folder / "delta.bin").write_bytes(data[:70])
        (other.folder / "delta.bin").write_bytes(data[70:])
        parts = [DeltaPart(folder=None, size=70), DeltaPart(folder=address, size=len(data) - 70)]
        delta = replace(delta, parts=parts)
    return write_manifest(folder, replace(manifest, files=files, delta=delta))


def policy_of(status):
    return PolicyId(attempt=status.attempt, version=status.version, digest=status.digest)


def norms_changed(tensors):
    for name, tensor in tensors.items():
        if name.endswith("norm.weight"):
            tensor.add_(1)


async def test_files_and_deltas_of_two_ranks_are_one_version(model, worker, environment, publisher, other):
    digest = shared(model, environment / "p", other)
    url = f"{publisher.url}/manifest.json"
    first = await asyncio.to_thread(worker.staged, None, digest, url=url)
    assert (first.state, first.error) == ("staged", None)
    assert [name for name, _ in other.requests] == ["part-1.safetensors"]
    assert worker.weights.apply(policy_of(first)).error is None
    wanted = {name: tensor + 1 for name, tensor in published_tensors(model[0]).items()}
    assert all(torch.equal(worker.model[name], tensor) for name, tensor in wanted.items())

    (environment / "p").rename(environment / "before")
    publisher.folder = environment / "p"
    (other.folder / "part-1.safetensors").rename(environment / "before" / "part-1.safetensors")
    digest = shared(model, environment / "p", other, base=environment / "before")
    second = await asyncio.to_thread(worker.staged, None, digest, url=url, version=2)
    assert (second.state, second.error, second.delta) == ("staged", None, "used")
    assert [name for name, _ in other.requests][1:] == ["delta.bin"]
    assert worker.weights.apply(policy_of(second)).error is None
    norms_changed(wanted)
    assert all(torch.equal(worker.model[name], tensor) for name, tensor in wanted.items())


async def test_a_rank_that_hangs_up_in_a_file_is_told_and_ends_the_others(model, worker, environment, publisher, other):
    other.hanging_up = publisher.stalling = True
    digest = shared(model, environment / "p", other)
    url = f"{publisher.url}/manifest.json"
    size = (other.folder / "part-1.safetensors").stat().st_size
    status = await asyncio.to_thread(worker.staged, None, digest, url=url)
    assert status.state == "failed"
    assert f"part-1.safetensors: {size // 2} bytes, the weight manifest says {size}" in status.error
    assert [one.name for one in (environment / "spool").iterdir()] == [".lock"]


async def test_folders_of_a_manifest_are_addresses_of_ranks(model, worker, environment, publisher, other):
    shared(model, environment / "p", other)
    manifest = decode((environment / "p" / "manifest.json").read_bytes(), WeightManifest)
    for folder in ("file:///etc/", "http://host:1/v", "https://host/v/", "../"):
        files = [replace(one, folder=folder) for one in manifest.files]
        digest = write_manifest(environment / "p", replace(manifest, files=files))
        status = await asyncio.to_thread(worker.staged, None, digest, url=f"{publisher.url}/manifest.json")
        assert status.state == "failed"
        assert f"weight manifest: folder {folder!r}; accepted is http://" in status.error
