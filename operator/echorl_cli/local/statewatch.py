"""Follows the orchestrator's ``GET /state``, and asks it to stop."""

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec

from echorl_core import names
from echorl_core.identity import RunIdentity
from echorl_core.wire.run_state import RunState, decode_run_state

_WAIT_S = 20
_RETRY_S = 0.5


class StateWatch:
    """A long poll that goes on through the orchestrator's restarts."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token: str,
        identity: Callable[[], RunIdentity],
        on_state: Callable[[RunState], None],
    ) -> None:
        """``identity`` is asked before every call; an answer of another attempt is dropped."""
        self._session = session
        self._url = url
        self._token = token
        self._identity = identity
        self._on_state = on_state

    async def run(self) -> None:
        """Follow until cancelled."""
        since: int | None = None
        while True:
            state = await self._get(since)
            if state is None:
                since = None
                await asyncio.sleep(_RETRY_S)
                continue
            since = state.revision
            self._on_state(state)

    async def stop(self) -> None:
        """Ask for a last checkpoint and the end; returns when the orchestrator has taken note."""
        url, timeout = f"{self._url}/control/stop", aiohttp.ClientTimeout(total=10)
        while True:
            headers = {**self._identity().headers(), names.HEADER_TOKEN: self._token}
            try:
                async with self._session.post(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                    if response.status == 200:
                        return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(_RETRY_S)

    async def _get(self, since: int | None) -> RunState | None:
        identity = self._identity()
        url, query = f"{self._url}/state", {} if since is None else {"since": str(since), "wait": str(_WAIT_S)}
        timeout = aiohttp.ClientTimeout(total=_WAIT_S + 10)
        headers = {**identity.headers(), names.HEADER_TOKEN: self._token}
        try:
            async with self._session.get(
                url, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    return None
                state = decode_run_state(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            return None
        return state if (state.uid, state.attempt) == (identity.uid, identity.attempt) else None
