"""Copies of what runs in a cluster have written, read by a command in each orchestrator, with the user's rights."""

import asyncio
import json
import re
import threading
from collections.abc import Sequence
from inspect import getsource
from pathlib import Path

import aiohttp
import msgspec

from echorl_cli.cluster.access import Cluster, Told, reached
from echorl_cli.cluster.kubeconfig import Place
from echorl_cli.view import remote_records
from echorl_core.names import ExitCode
from echorl_operator import names
from echorl_operator.children.cluster_placement import run_directory
from echorl_operator.kube import errors
from echorl_operator.kube.resources import POD

INTERVAL_S = 3.0
PASS_S = 120.0
CLOSE_S = 5.0
MOST_BYTES = 32 << 20
MOST_ANSWER_BYTES = 2 * MOST_BYTES
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,5}")


class _Head(msgspec.Struct, array_like=True):
    path: str
    inode: int
    offset: int
    length: int


class Copy:
    """One run's folder, as far as it has been copied."""

    def __init__(self, run: str, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """``most_bytes``: that one pass brings."""
        self.run, self.folder, self._most_bytes = run, folder, most_bytes
        self.problem = ""
        """Why nothing new comes; empty while all is well."""
        self._known: dict[str, tuple[int, int]] = {}

    def asked(self) -> bytes:
        """What the pod is told that there is already."""
        return json.dumps({"known": self._known, "most": self._most_bytes}).encode() + b"\n"

    def take(self, answer: bytes) -> bool:
        """Write what came; tells whether that was anything.

        Raises:
            ValueError: it is no answer of ours.
        """
        place = 0
        while place < len(answer):
            end = answer.index(b"\n", place)
            head = msgspec.json.decode(answer[place:end], type=_Head)
            data = answer[end + 1 : end + 1 + head.length]
            # The pod runs code of the run's authors: it names no path beyond the folder, and no hidden one.
            if not _PATH.fullmatch(head.path) or len(data) != head.length or head.offset < 0:
                raise ValueError(f"found {head.path!r:.80} with {len(data)} bytes, accepted is a whole file of the run")
            self._write(head, data)
            place = end + 1 + head.length
        return bool(answer)

    def _write(self, head: _Head, data: bytes) -> None:
        path = self.folder / head.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if head.offset == 0:
            # A new file, so that whoever reads the old one sees that it is another.
            path.unlink(missing_ok=True)
        with path.open("ab") as file:
            file.truncate(head.offset)
            file.write(data)
        self._known[head.path] = (head.inode, head.offset + len(data))


class Mirror:
    """Keeps copies of runs, in a thread of its own."""

    def __init__(self, where: Place, runs: Sequence[str], folder: Path) -> None:
        """``folder``: empty; each run gets a folder in it, by its name."""
        self._where = where
        self.copies = [Copy(run, folder / run) for run in runs]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._go_on()), name="mirror", daemon=True)

    @property
    def folders(self) -> list[Path]:
        """The runs' folders."""
        return [copy.folder for copy in self.copies]

    @property
    def notices(self) -> list[str]:
        """Runs of which nothing new comes, and why."""
        return [f"run {copy.run}: {copy.problem}" for copy in self.copies if copy.problem]

    def start(self) -> None:
        """Copy once, and go on copying.

        Raises:
            Told: a run is not there, or its orchestrator cannot be asked.
        """
        asyncio.run(self._first())
        self._thread.start()

    def close(self) -> None:
        """Copy no more; a pass that is under way is waited for, but not long."""
        self._ended.set()
        self._thread.join(CLOSE_S)

    async def _first(self) -> None:
        for copy in self.copies:
            async with reached(self._where) as cluster:
                await cluster.run(copy.run)
            try:
                await self._pass(copy)
            except _FAILURES as error:
                raise Told(f"run {copy.run}: {_said(error)}", ExitCode.CRASH) from error
            if not copy.folder.exists():
                raise Told(f"run {copy.run}: it has written nothing yet", ExitCode.CRASH)

    async def _go_on(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            for copy in self.copies:
                try:
                    while await self._pass(copy) and not self._ended.is_set():
                        pass
                    copy.problem = ""
                except Exception as error:  # shown on every page, and tried again
                    copy.problem = _said(error)

    async def _pass(self, copy: Copy) -> bool:
        pod = names.orchestrator(copy.run)
        async with asyncio.timeout(PASS_S), reached(self._where) as cluster:
            try:
                body = await cluster.get(POD, pod)
            except errors.NotFound as error:
                raise ValueError(_NOBODY) from error
            python = msgspec.json.decode(body, type=_Pod).spec.containers[0].command[0]
            command = [python, "-c", getsource(remote_records), run_directory(copy.run)]
            answer = await _answered(cluster, pod, command, copy.asked())
        # Whoever ended this removes the copies, and what was written then would stay.
        return not self._ended.is_set() and copy.take(answer)


_NOBODY = "it has no orchestrator now, so nobody can be asked; a pod with its volume has the rest (`kubectl cp`)"
_FAILURES = (Told, aiohttp.ClientError, OSError, TimeoutError, ValueError)


class _Container(msgspec.Struct):
    command: list[str]


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Pod(msgspec.Struct):
    spec: _Spec


async def _answered(cluster: Cluster, pod: str, command: list[str], asked: bytes) -> bytes:
    """What a command in a pod writes, given a line: the remote command protocol over a WebSocket, version 4.

    Raises:
        ValueError: it failed; with what it said.
    """
    stdin, stdout, stderr, status = 0, 1, 2, 3
    channels = {channel: bytearray() for channel in (stdout, stderr, status)}
    access = cluster.access
    query = [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), *(("command", part) for part in command)]
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(
            access.server + POD.path(cluster.namespace, pod, "exec"),
            params=query,
            headers=await access.headers(),
            ssl=access.ssl,
            server_hostname=access.server_name,
            proxy=access.proxy,
            protocols=("v4.channel.k8s.io",),
        ) as stream,
    ):
        await stream.send_bytes(bytes([stdin]) + asked)
        async for message in stream:
            if message.type == aiohttp.WSMsgType.BINARY and message.data[:1] and message.data[0] in channels:
                channels[message.data[0]] += message.data[1:]
            if len(channels[stdout]) > MOST_ANSWER_BYTES:
                raise ValueError(f"its orchestrator's answer has more than {MOST_ANSWER_BYTES >> 20} MiB")
    ended = json.loads(channels[status] or b"{}")
    if ended.get("status") != "Success":
        said = bytes(channels[stderr][-400:]).decode(errors="replace").strip()
        raise ValueError(f"its orchestrator does not tell: {said or ended.get('message', 'the connection was lost')}")
    return bytes(channels[stdout])


def _said(error: Exception) -> str:
    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 403:
        return "not allowed: `create` on `pods/exec` is needed"
    if isinstance(error, Told | ValueError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else f"no answer within {PASS_S:g} s"
