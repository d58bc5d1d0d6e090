"""Follows each run's orchestrator by one long poll of ``GET /state``, and asks it to stop."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Never

import aiohttp
import msgspec
import structlog

from echorl_core import names
from echorl_core.identity import RunIdentity
from echorl_core.live import LiveSettings
from echorl_core.wire.run_state import RunState
from echorl_operator.kube.backoff import Backoff
from echorl_operator.metrics import Metrics
from echorl_operator.observed.roles import RoleState
from echorl_operator.observed.runs import RunKey
from echorl_operator.orchestrators.run_state import read_answer, role_state
from echorl_operator.orchestrators.tokens import Tokens

_LARGEST_ANSWER: Final = 4 * 2**20
_log = structlog.get_logger()


@dataclass(frozen=True)
class PollSettings:
    """How orchestrators are polled, in seconds."""

    wait_s: float = 60.0
    """How long an orchestrator holds an answer back while nothing changes."""
    connect_s: float = 3.0
    reply_s: float = 10.0
    """So much later than ``wait_s`` an answer counts as lost; also the time-out of a request to stop."""
    pace_s: float = 2.0
    """Shortest time between two answers: counters change every second, and no decision rests on them."""
    stale_s: float = 90.0
    """After so long without an answer nothing is known of the orchestrator any more."""
    first_retry_s: float = 0.5
    longest_retry_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """One orchestrator pod that has an address."""

    key: RunKey
    uid: str
    """The run's uid."""
    attempt: int
    address: str
    """The orchestrator's ``host:port``."""


class _Follower:
    """What is known through one target."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.task: asyncio.Task[Never] | None = None
        self.state: RoleState | None = None
        self.heard_at = float("-inf")
        self.stale_told = True
        """Whether the queue knows that there is no fresh state."""


class Orchestrators:
    """All followed orchestrators. Use as a context manager; ``run`` does the polling, and ends before the context."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        on_change: Callable[[RunKey], None],
        metrics: Metrics,
        settings: PollSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``on_change`` gets the key of a run whose state changed or became stale."""
        self._tokens, self._on_change, self._metrics = tokens, on_change, metrics
        self._settings, self._clock, self._wall = settings or PollSettings(), clock, wall
        self._followers: dict[RunKey, _Follower] = {}
        self._session: aiohttp.ClientSession | None = None
        self._group: asyncio.TaskGroup | None = None
        metrics.at_scrape("orchestrators_followed", "Long polls.", (), lambda: [((), float(len(self._followers)))])

    async def __aenter__(self) -> "Orchestrators":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0),
            # What a run's pod sends must not grow a thousandfold here before its size is known.
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            # Calls have a total of asyncio's: a cancellation that comes as aiohttp's ends is lost (3.14).
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._settings.connect_s),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def run(self) -> None:
        """Poll every target until cancelled; a failure of our own code ends it."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for follower in self._followers.values():
                    self._start(follower)
                await asyncio.Event().wait()
        finally:
            self._group = None

    def follow(self, target: Target) -> None:
        """Follow this target from now on, and no other one of its run. The same again does nothing."""
        follower = self._followers.get(target.key)
        if follower is not None and follower.target == target:
            return
        self.forget(target.key)
        follower = self._followers[target.key] = _Follower(target)
        self._start(follower)

    def forget(self, key: RunKey) -> None:
        """Follow no orchestrator of this run any more."""
        follower = self._followers.pop(key, None)
        if follower is not None and follower.task is not None:
            follower.task.cancel()

    def state(self, key: RunKey) -> RoleState | None:
        """What the run's orchestrator said last; None if it has not answered lately, or none is followed."""
        follower = self._followers.get(key)
        return None if follower is None or self._stale(follower) else follower.state

    async def ask_to_stop(self, target: Target) -> bool:
        """Ask for a last checkpoint and the end; False if the orchestrator did not take note: ask again."""
        return await self._post(target, "/control/stop", b"")

    async def change_live(self, target: Target, settings: LiveSettings) -> bool:
        """Send live settings; False if the orchestrator did not take them over."""
        return await self._post(target, "/control/live", msgspec.json.encode(settings))

    async def _post(self, target: Target, path: str, body: bytes) -> bool:
        url = f"http://{target.address}{path}"
        headers = {**self._headers(target), "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._settings.reply_s),
                self._open().post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                reply, status = await response.content.read(_LARGEST_ANSWER), response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.info("an orchestrator did not answer", run=_name(target), path=path, error=type(error).__name__)
            return False
        if status != 200:
            refusal = reply[:500].decode(errors="replace")
            _log.warning("an orchestrator refused", run=_name(target), path=path, status=status, reply=refusal)
        return status == 200

    def _start(self, follower: _Follower) -> None:
        if self._group is not None and follower.task is None:
            follower.task = self._group.create_task(self._poll(follower), name=f"follow {_name(follower.target)}")

    def _stale(self, follower: _Follower) -> bool:
        return self._clock() - follower.heard_at > self._settings.stale_s

    async def _poll(self, follower: _Follower) -> Never:
        settings = self._settings
        backoff = Backoff(settings.first_retry_s, settings.longest_retry_s)
        since: int | None = None
        while True:
            started = self._clock()
            answer = await self._get(follower.target, since)
            if answer is None:
                since = None
                self._tell_if_stale(follower)
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            since = answer.revision
            self._take(follower, answer)
            await asyncio.sleep(max(0.0, settings.pace_s - (self._clock() - started)))

    def _take(self, follower: _Follower, answer: RunState) -> None:
        before, was_stale = follower.state, follower.stale_told
        state = role_state(answer, before=before, now=self._wall())
        follower.state, follower.heard_at, follower.stale_told = state, self._clock(), False
        if was_stale or before is None or replace(before, seen_at=state.seen_at) != state:
            self._on_change(follower.target.key)

    def _tell_if_stale(self, follower: _Follower) -> None:
        if not follower.stale_told and self._stale(follower):
            follower.stale_told = True
            self._on_change(follower.target.key)

    async def _get(self, target: Target, since: int | None) -> RunState | None:
        """The next answer of this attempt; None if there is none."""
        wait_s = self._settings.wait_s
        query = {} if since is None else {"since": str(since), "wait": str(wait_s)}
        url = f"http://{target.address}/state"
        within_s = self._settings.reply_s + (0.0 if since is None else wait_s)
        try:
            # A run's pod must not send the operator, which may reach what the run may not, to other servers.
            async with (
                asyncio.timeout(within_s),
                self._open().get(url, params=query, headers=self._headers(target), allow_redirects=False) as response,
            ):
                body, status = await _body(response), response.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return self._counted(None, "unreachable")
        if status != 200:
            return self._counted(None, str(status))
        try:
            answer = read_answer(body)
        except msgspec.MsgspecError as error:
            _log.warning("an orchestrator's state cannot be read", run=_name(target), error=str(error))
            return self._counted(None, "invalid")
        mine = (answer.uid, answer.attempt) == (target.uid, target.attempt)
        return self._counted(answer if mine else None, "ok" if mine else "foreign")

    def _counted(self, answer: RunState | None, result: str) -> RunState | None:
        self._metrics.polls.labels(result).inc()
        return answer

    def _headers(self, target: Target) -> dict[str, str]:
        identity = RunIdentity(target.key.name, target.uid, target.attempt)
        return {**identity.headers(), names.HEADER_TOKEN: self._tokens.token(target.uid)}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("not open: enter it with `async with`")
        return self._session


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Read the whole body; an absurdly long one is cut, and cannot be decoded then."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _LARGEST_ANSWER:
            break
        parts.append(part)
    return b"".join(parts)


def _name(target: Target) -> str:
    return f"{target.key.namespace}/{target.key.name}"
