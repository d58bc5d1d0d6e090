"""Calls to one engine that the preflight started: weight updates, logprobs of a prompt, timed completions."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import aiohttp

from echorl_core import names
from echorl_core.wire.weights import PolicyAnnouncement

STAGE_DEADLINE_S = 300.0
LEASE_S = 120.0
_POLL_S = 0.05


class CallFailed(Exception):
    """An engine did not answer, or not as it must."""


class EngineCalls:
    """HTTP to an engine at ``url``, with the run's token."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, run_uid: str, token: str) -> None:
        self._session, self._url = session, url
        self._headers = {names.HEADER_RUN: run_uid, names.HEADER_TOKEN: token}

    async def status(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of an answer.

        Raises:
            CallFailed: there was none.
        """
        try:
            async with self._session.request(
                method, self._url + path, json=body, headers=self._headers, allow_redirects=False
            ) as response:
                return response.status, await response.text()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CallFailed(f"{path}: {type(error).__name__}: {error}") from error

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Decoded answer.

        Raises:
            CallFailed: there was none, or its status is not 200.
        """
        status, text = await self.status(method, path, body)
        if status != 200:
            raise CallFailed(f"{path}: HTTP {status}: {text[:300]}")
        return json.loads(text)

    async def swap(self, policy: PolicyAnnouncement) -> float:
        """Bring the engine to a version; seconds that it stood still.

        Raises:
            CallFailed: a step of it was refused or took too long.
        """
        wanted = {"attempt": policy.attempt, "version": policy.version, "digest": policy.digest}
        await self.ask("POST", "/echorl/stage", {**wanted, "url": policy.url, "deadline_s": STAGE_DEADLINE_S})
        deadline = time.monotonic() + STAGE_DEADLINE_S
        while True:
            workers = (await self.ask("GET", "/echorl/stage"))["workers"]
            if failed := [worker["error"] for worker in workers if worker["state"] == "failed"]:
                raise CallFailed(f"version {policy.version} was refused: {failed[0]}")
            if all(worker["state"] == "staged" for worker in workers):
                break
            if time.monotonic() > deadline:
                raise CallFailed(f"version {policy.version} was not staged within {STAGE_DEADLINE_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        began = time.monotonic()
        await self.ask("POST", "/echorl/pause", {"lease_s": LEASE_S})
        try:
            await self.ask("POST", "/echorl/apply", wanted)
        finally:
            await self.status("POST", "/echorl/resume", {})
        return time.monotonic() - began

    async def prompt_logprobs(self, model: str, tokens: Sequence[int]) -> list[float]:
        """Natural-log probabilities of tokens 1.. given their prefix; not a number where the engine gives none.

        Raises:
            CallFailed: the engine refused, or the answer has another shape.
        """
        body = completion(model, tokens, 1) | {"prompt_logprobs": 0}
        answer = await self.ask("POST", "/v1/completions", body)
        try:
            entries = answer["choices"][0]["prompt_logprobs"][1:]
            pairs = zip(tokens[1:], entries, strict=True)
            return [float(entry[str(token)]["logprob"]) for token, entry in pairs]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CallFailed(f"prompt logprobs of {model}: {type(error).__name__}: {error}") from error

    async def timed(self, model: str, tokens: Sequence[int], length: int) -> float:
        """Seconds that a completion of ``length`` tokens takes."""
        began = time.monotonic()
        await self.ask("POST", "/v1/completions", completion(model, tokens, length) | {"ignore_eos": True})
        return time.monotonic() - began


def completion(model: str, tokens: Sequence[int], length: int) -> dict[str, Any]:
    """A request for ``length`` tokens at temperature 1."""
    return {"model": model, "prompt": list(tokens), "max_tokens": length, "temperature": 1.0}


def distance(measured: Sequence[float], expected: Sequence[float]) -> float:
    """Largest absolute difference; infinite where it cannot be said."""
    apart = [abs(a - b) for a, b in zip(measured, expected, strict=True)]
    # max() alone passes over a NaN that does not come first.
    return max(apart) if all(map(math.isfinite, apart)) else math.inf
