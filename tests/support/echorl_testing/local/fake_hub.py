"""A hub of models at the wire: what huggingface_hub asks of one, over files in memory."""

import hashlib
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Serves one model; a context manager. ``requests`` lists method, path and bearer of every call."""

    def __init__(self, name: str, files: Mapping[str, bytes], *, commit: str, token: str | None = None) -> None:
        """``token``: that the model is private to."""
        self.name, self.files, self.commit, self.token = name, dict(files), commit, token
        self.refs = {"main": commit}
        self.broken: set[str] = set()
        """Files that break off in the middle."""
        self.status: int | None = None
        """Answer everything with this."""
        self.requests: list[tuple[str, str, str]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub._answer(self, body=True)

            def do_HEAD(self) -> None:
                hub._answer(self, body=False)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeHub":
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fetched(self) -> list[str]:
        """Files that were downloaded, in order of name."""
        prefix = f"/{self.name}/resolve/"
        paths = [path for method, path, _ in self.requests if method == "GET" and path.startswith(prefix)]
        return sorted(path.removeprefix(prefix).partition("/")[2] for path in paths)

    def _answer(self, request: BaseHTTPRequestHandler, *, body: bool) -> None:
        path = unquote(urlsplit(request.path).path)
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.requests.append((request.command, path, bearer))
        api, files = f"/api/models/{self.name}/revision/", f"/{self.name}/resolve/"
        if self.status is not None:
            self._send(request, self.status, b"", {})
        elif not path.startswith((api, files)):
            self._send(request, 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif self.token is not None and bearer != self.token:
            self._send(request, 401, b"", {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(api):
            self._info(request, path.removeprefix(api))
        else:
            self._file(request, path.removeprefix(files).partition("/")[2], body=body)

    def _info(self, request: BaseHTTPRequestHandler, revision: str) -> None:
        if revision not in {*self.refs, *self.refs.values()}:
            self._send(request, 404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [{"rfilename": name, "size": len(data), "blobId": _etag(data)} for name, data in self.files.items()]
        info = {"id": self.name, "sha": self.refs.get(revision, revision), "siblings": siblings, "private": False}
        self._send(request, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, request: BaseHTTPRequestHandler, name: str, *, body: bool) -> None:
        data = self.files[name]
        headers = {"X-Repo-Commit": self.commit, "ETag": f'"{_etag(data)}"', "Accept-Ranges": "bytes"}
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        length = len(data) - start
        request.send_response(206 if start else 200)
        for key, value in {**headers, "Content-Length": str(length)}.items():
            request.send_header(key, value)
        request.end_headers()
        if body:
            request.wfile.write(data[start : start + length // 2] if name in self.broken else data[start:])

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, data: bytes, headers: Mapping[str, str]) -> None:
        request.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(key, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
