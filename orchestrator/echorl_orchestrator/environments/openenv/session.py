"""The wire of an OpenEnv server: ``/schema`` by HTTP, and a session for each episode on ``/ws``.

    ours    {"type": "reset", "data": {"seed": 7}}      {"type": "step", "data": {"word": "crane"}}     state, close
    theirs  {"type": "observation", "data": {"observation": {...}, "reward": null, "done": false}}      state
            {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "..."}}

What fails on the way is infrastructure; what the server says of itself, or says wrongly, is the harness; an action that
it does not take is the agent's, who is told (``ActionRefused``).
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from echorl_orchestrator.failures import BadInputError, HarnessError, InfrastructureError

_LONGEST_FRAME_BYTES = 64 << 20
_AGAIN_S = 0.5
_INFRASTRUCTURE = frozenset({"CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"})
"""Codes that say nothing of the task."""


class ActionRefused(Exception):
    """The action is none of the environment's; the text says why, for who chose it."""


class _NoRoom(Exception):
    """The server has as many sessions as it takes."""


@dataclass(frozen=True)
class Answer:
    """What ``reset`` or ``step`` came to."""

    observation: dict[str, Any]
    reward: float | None
    done: bool


async def action_schema(url: str, within_s: float) -> dict[str, Any]:
    """The JSON schema of the actions that the server at ``url`` takes; a server that is starting is waited for.

    Raises:
        BadInputError: nobody answers within ``within_s`` seconds, or who answers is no OpenEnv server.
    """
    timeout = aiohttp.ClientTimeout(total=min(within_s, 10.0))
    loop = asyncio.get_running_loop()
    ends = loop.time() + within_s
    async with aiohttp.ClientSession(timeout=timeout) as client:
        while True:
            try:
                async with client.get(f"{url}/schema") as response:
                    found = await response.json(content_type=None) if response.status == 200 else None
                    status = response.status
                break
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                why = str(error) or type(error).__name__
            except (ValueError, RecursionError):
                found, status = None, 200
                break
            if loop.time() >= ends:
                raise BadInputError(f"found no server at {url} ({why}), accepted is one of OpenEnv that runs")
            await asyncio.sleep(_AGAIN_S)
    schema = found.get("action") if isinstance(found, dict) else None
    if not isinstance(schema, dict):
        raise BadInputError(
            f"found no server of OpenEnv at {url} (/schema: status {status}), accepted is one that tells its actions"
        )
    return schema


class Session:
    """One episode on a server; made by ``opened``."""

    def __init__(self, url: str, client: aiohttp.ClientSession, call_s: float) -> None:
        self._url, self._client, self._call_s = url, client, call_s
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    @classmethod
    async def opened(cls, url: str, reset: dict[str, Any], *, call_s: float, room_s: float) -> tuple["Session", Answer]:
        """A session that was reset, and what that came to; waits up to ``room_s`` while the server has no room.

        Raises:
            InfrastructureError: the server is not there, or has no room.
            HarnessError: it cannot be reset.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + room_s
        while True:
            session = cls(url, aiohttp.ClientSession(), call_s)
            try:
                return session, await session._begun(reset)
            except _NoRoom as error:
                await session.close()
                if loop.time() >= ends:
                    raise InfrastructureError(
                        f"{url} had no room for a session for {room_s:g} s ({error}): maxConcurrent is more than it has"
                    ) from None
                await asyncio.sleep(_AGAIN_S)
            except BaseException:
                await session.close()
                raise

    async def _begun(self, reset: dict[str, Any]) -> Answer:
        address = f"ws{self._url.removeprefix('http')}/ws"
        try:
            async with asyncio.timeout(self._call_s):
                self._socket = await self._client.ws_connect(address, max_msg_size=_LONGEST_FRAME_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"{address}: {error or 'no answer'}") from None
        try:
            return _answer("reset", await self._called("reset", reset))
        except ActionRefused as error:
            raise HarnessError(f"reset: {error}") from None

    async def step(self, action: dict[str, Any]) -> Answer:
        """Take an action.

        Raises:
            ActionRefused: it is none of the environment's; the episode goes on.
            InfrastructureError: the server is lost.
            HarnessError: the environment failed.
        """
        return _answer("step", await self._called("step", action))

    async def state(self) -> dict[str, Any]:
        """What the server tells of the episode beside its observations; raises as ``step`` does."""
        return await self._called("state", None)

    async def close(self) -> None:
        """End the session; of a server that is lost nothing is asked any more."""
        try:
            if self._socket is not None and not self._socket.closed:
                async with asyncio.timeout(self._call_s):
                    await self._socket.send_json({"type": "close"})
                    await self._socket.close()
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        finally:
            await self._client.close()

    async def _called(self, kind: str, data: dict[str, Any] | None) -> dict[str, Any]:
        assert self._socket is not None  # noqa: S101 - it was begun
        try:
            async with asyncio.timeout(self._call_s):
                await self._socket.send_json({"type": kind, **({} if data is None else {"data": data})})
                frame = await self._socket.receive()
        except TimeoutError:
            raise InfrastructureError(f"{self._url}: {kind}: no answer after {self._call_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise InfrastructureError(f"{self._url}: {kind}: {error}") from None
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise InfrastructureError(f"{self._url}: {kind}: the server ended the session")
        return _data(kind, frame.data)


def _data(kind: str, text: str) -> dict[str, Any]:
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        frame = None
    data = frame.get("data") if isinstance(frame, dict) else None
    expected = "state" if kind == "state" else "observation"
    if not isinstance(frame, dict) or not isinstance(data, dict) or frame.get("type") not in {expected, "error"}:
        raise HarnessError(f"{kind}: found {text[:200]!r}, accepted is a frame of type {expected} or error")
    if frame["type"] == expected:
        return data
    code, message = data.get("code"), str(data.get("message"))
    if code == "CAPACITY_REACHED":
        raise _NoRoom(message)
    if code == "VALIDATION_ERROR":
        raise ActionRefused(_fields(data.get("errors")) or message)
    if code in _INFRASTRUCTURE:
        raise InfrastructureError(f"{kind}: {code}: {message}")
    raise HarnessError(f"{kind}: {code}: {message}")


def _fields(errors: Any) -> str:
    """What is wrong with each field of an action."""
    told = [one for one in errors if isinstance(one, dict)] if isinstance(errors, list) else []
    places = (".".join(map(str, one["loc"])) if isinstance(one.get("loc"), list) else "" for one in told)
    return "; ".join(f"{place or 'action'}: {one.get('msg')}" for place, one in zip(places, told, strict=True))


def _answer(kind: str, data: dict[str, Any]) -> Answer:
    observation, reward = data.get("observation"), data.get("reward")
    if not isinstance(observation, dict):
        raise HarnessError(f"{kind}: observation: found {type(observation).__name__}, accepted is an object")
    if reward is not None and not isinstance(reward, int | float):
        raise HarnessError(f"{kind}: reward: found {str(reward)[:100]!r}, accepted is a number")
    return Answer(observation, None if reward is None else float(reward), data.get("done") is True)
