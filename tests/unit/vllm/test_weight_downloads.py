"""A worker's staging over http://, from a file server like rank 0's."""

import asyncio
import hashlib
import threading
import time

import pytest
from aiohttp import web

from echorl_core.run_token import weights_key
from echorl_core.wire.weights import WeightFile
from echorl_testing.engines.staging_worker import RUN, Worker, published
from echorl_vllm.download import Download, Limits
from echorl_vllm.validation import WeightsRefusedError


class Publisher:
    """Rank 0's file server."""

    def __init__(self, folder):
        self.folder = folder
        self.requests = []
        self.stall = threading.Event()
        self.stalling = False

    async def serve(self, request):
        name = request.match_info["name"]
        self.requests.append((name, dict(request.headers)))
        if name == "moved.json":
            raise web.HTTPFound("/manifest.json")
        if not (self.folder / name).exists():
            raise web.HTTPNotFound(text="only the newest two versions are kept")
        data = (self.folder / name).read_bytes()
        if not self.stalling or name == "manifest.json":
            return web.Response(body=data)
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:10])
        await asyncio.to_thread(self.stall.wait, 10)
        return response


@pytest.fixture
async def publisher(environment):
    served = Publisher(environment / "p")
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
        ("http://127.0.0.1:9/manifest.json", "refused"),
        ("ftp://x/manifest.json", "accepted are http:// and file://"),
    ]:
        status = await asyncio.to_thread(worker.staged, None, digest, url=url)
        assert status.state == "failed"
        assert message in status.error


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


class Ranges:
    """A file server as rank 0 is one: it answers parts of files."""

    def __init__(self, folder):
        self.folder, self.asked, self.knows_ranges = folder, [], True

    async def serve(self, request):
        self.asked.append(request.headers.get("Range"))
        path = self.folder / request.match_info["name"]
        return web.FileResponse(path) if self.knows_ranges else web.Response(body=path.read_bytes())


@pytest.fixture
async def ranges(tmp_path):
    served = Ranges(tmp_path / "p")
    served.folder.mkdir()
    app = web.Application()
    app.router.add_get("/{name}", served.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/manifest.json"
    yield served
    await runner.cleanup()


def downloaded(url, to, files, part_bytes):
    to.mkdir()
    told = [WeightFile(name=name, size=size) for name, size in files.items()]
    Download(url, {}, Limits(time.monotonic() + 60)).run(told, to, part_bytes=part_bytes)
    return {path.name: path.read_bytes() for path in to.iterdir()}


@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize("part_bytes", [1, 7, 10, 24, 25, 100])
async def test_files_are_put_together_from_parts(ranges, tmp_path, scheme, part_bytes):
    whole = {"a.safetensors": bytes(range(25)), "b.safetensors": bytes(range(100, 110)), "c.safetensors": b""}
    for name, data in whole.items():
        (ranges.folder / name).write_bytes(data)
    url = ranges.url if scheme == "http" else (ranges.folder / "manifest.json").as_uri()
    sizes = {name: len(data) for name, data in whole.items()}
    assert await asyncio.to_thread(downloaded, url, tmp_path / "to", sizes, part_bytes) == whole
    if scheme == "http":
        assert len([one for one in ranges.asked if one]) == sum(
            -(-size // part_bytes) for size in sizes.values() if size > part_bytes
        )


@pytest.mark.parametrize("scheme", ["http", "file"])
@pytest.mark.parametrize("part_bytes", [8, 100])
@pytest.mark.parametrize("told", [20, 30])
async def test_a_file_of_another_size_is_refused(ranges, tmp_path, scheme, part_bytes, told):
    (ranges.folder / "a.safetensors").write_bytes(bytes(25))
    url = ranges.url if scheme == "http" else (ranges.folder / "manifest.json").as_uri()
    with pytest.raises(WeightsRefusedError, match=rf"a\.safetensors: .*(manifest.* {told}|{told} bytes|HTTP 416)"):
        await asyncio.to_thread(downloaded, url, tmp_path / "to", {"a.safetensors": told}, part_bytes)


async def test_a_server_that_sends_the_whole_in_place_of_a_part_is_refused(ranges, tmp_path):
    ranges.knows_ranges = False
    (ranges.folder / "a.safetensors").write_bytes(bytes(25))
    with pytest.raises(WeightsRefusedError, match=r"HTTP 200, asked for was bytes=\d+-\d+"):
        await asyncio.to_thread(downloaded, ranges.url, tmp_path / "to", {"a.safetensors": 25}, 8)
