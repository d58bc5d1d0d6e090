"""The wire of a resources server: JSON by HTTP, and cookies that say which episode it is.

    POST /seed_session   the row                                   begins an episode
                         tools may be behind MCP (``mcp``): it says where, and by what headers it knows the episode
    POST /<tool>         the arguments of a call                   any answer is the tool's, errors too
    POST /verify         the row, and ``response``: what was said  {"reward": 1.0, ...}

What fails on the way is infrastructure; what the server refuses of a row, or answers wrongly, is the harness.
"""

import asyncio
import json
from typing import Any

import aiohttp

from echorl_orchestrator.environments.nemo_gym.mcp import McpServer
from echorl_orchestrator.failures import BadInputError, HarnessError, InfrastructureError

_OK = 200
_AGAIN_S, _ASKED_S = 0.5, 10.0
"""Until a server that is not there yet is asked again; for one answer of it then."""
_TOLD = 300
"""Characters of an answer that a message quotes."""


async def check_server(url: str, within_s: float) -> None:
    """Look whether a resources server is at ``url``; one that is starting is waited for.

    Raises:
        BadInputError: nobody answers within ``within_s`` seconds, or who answers verifies nothing.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + within_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ASKED_S)) as client:
        while True:
            try:
                async with client.get(f"{url}/openapi.json") as response:
                    found = await response.json(content_type=None) if response.status == _OK else None
                break
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                why = str(error) or type(error).__name__
            except (ValueError, RecursionError):
                found = None
                break
            if loop.time() >= ends:
                raise BadInputError(f"nemo-gym: found no server at {url} ({why}), accepted is one that runs")
            await asyncio.sleep(_AGAIN_S)
    paths = found.get("paths") if isinstance(found, dict) else None
    missing = [path for path in ("/seed_session", "/verify") if not isinstance(paths, dict) or path not in paths]
    if missing:
        raise BadInputError(
            f"nemo-gym: found no {' and '.join(missing)} at {url}, accepted is a resources server of NeMo Gym"
        )


class GymSession:
    """One episode on a server; an asynchronous context."""

    def __init__(self, url: str, call_s: float) -> None:
        self._url = url
        # Servers by address have cookies too; their values are given back as they came.
        jar = aiohttp.CookieJar(unsafe=True, quote_cookie=False)
        self._client = aiohttp.ClientSession(cookie_jar=jar, timeout=aiohttp.ClientTimeout(total=call_s))
        self._mcp: McpServer | None = None
        self._behind_mcp: frozenset[str] = frozenset()

    async def __aenter__(self) -> "GymSession":
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._mcp is not None:
                await self._mcp.close()
        finally:
            await self._client.close()

    async def seed(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Begin the episode of a row; returns the tools that the server offers by MCP, as functions of Responses.

        Raises:
            InfrastructureError: the server is lost.
            HarnessError: it refuses the row, or answers what is none of its protocols.
        """
        where = (await self._json("seed_session", row)).get("mcp")
        if where is None:
            return []
        self._mcp = McpServer(self._client, *_mcp_address(self._url, where))
        tools = await self._mcp.tools()
        self._behind_mcp = frozenset(tool["name"] for tool in tools)
        return tools

    async def tool(self, name: str, arguments: Any) -> str:
        """What a tool answers, an error of its own included; raises as ``seed`` does."""
        if self._mcp is not None and name in self._behind_mcp:
            return await self._mcp.call(name, arguments)
        return (await self._posted(name, arguments))[1]

    async def verify(self, row: dict[str, Any], response: dict[str, Any]) -> tuple[float, dict[str, float]]:
        """Reward and numbers beside it; raises as ``seed`` does, also where there is no reward."""
        answer = await self._json("verify", {**row, "response": response})
        numbers = {
            name: float(value)
            for name, value in answer.items()
            if isinstance(value, int | float) and name not in row and name != "reward"
        }
        reward = answer.get("reward")
        if not isinstance(reward, int | float):
            raise HarnessError(f"{self._url}/verify: reward: found {str(reward)[:_TOLD]}, accepted is a number")
        return float(reward), numbers

    async def _json(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, text = await self._posted(path, body)
        try:
            answer = json.loads(text) if status == _OK else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise HarnessError(
                f"{self._url}/{path}: status {status}, found {text[:_TOLD]!r}, accepted is a JSON object"
            )
        return answer

    async def _posted(self, path: str, body: Any) -> tuple[int, str]:
        try:
            async with self._client.post(f"{self._url}/{path}", json=body) as response:
                return response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"{self._url}/{path}: {str(error) or 'no answer in time'}") from None


def _mcp_address(url: str, where: Any) -> tuple[str, dict[str, str]]:
    """The address that ``mcp`` of a session names, and the headers of every call to it."""
    asked = where if isinstance(where, dict) else {}
    path, headers = asked.get("url_path"), asked.get("headers")
    if (
        isinstance(path, str)
        and path.startswith("/")
        and isinstance(headers, dict)
        and all(isinstance(value, str) and value.isprintable() for value in headers.values())
        and asked.get("transport", "http") == "http"
    ):
        return f"{url}{path}", headers
    raise HarnessError(
        f"{url}/seed_session: mcp: found {str(where)[:_TOLD]}, accepted are url_path, headers and transport: http"
    )
