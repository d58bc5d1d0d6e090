"""Tools behind a server of MCP, by the part of that protocol that they need: JSON-RPC over streamable HTTP.

    initialize, notifications/initialized     begin; the server may name a session (``Mcp-Session-Id``)
    tools/list                                names, descriptions and schemas, page by page
    tools/call                                what the model reads, errors of the tool and of its arguments too

An answer is an object of JSON, or a stream of server-sent events of which one is it. What fails on the way is
infrastructure; what the server refuses, or answers wrongly, is the harness.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from echorl_orchestrator.failures import HarnessError, InfrastructureError

_VERSION = "2025-06-18"
_VERSIONS = ("2025-03-26", _VERSION, "2025-11-25")
"""Of the protocol: the one that is asked for, and those in which tools are the same."""
_SESSION, _SPOKEN = "Mcp-Session-Id", "Mcp-Protocol-Version"
_CLIENT = {"name": "echorl", "version": "1"}
_END_S = 5.0
_PAGES = 100
"""Of a list of tools."""
_OK, _ACCEPTED, _GONE = 200, 202, 404
_TOLD = 300
"""Characters of an answer that a message quotes."""


class McpServer:
    """One session of ours with a server; ``client`` bounds how long a call may take."""

    def __init__(self, client: aiohttp.ClientSession, url: str, headers: Mapping[str, str]) -> None:
        self._client, self._url = client, url
        self._headers = {**headers, "Accept": "application/json, text/event-stream"}
        self._calls = 0

    async def tools(self) -> list[dict[str, Any]]:
        """Begin the session; the tools that the server offers, as functions of OpenAI's Responses.

        Raises:
            InfrastructureError: the server is lost.
            HarnessError: it is none of MCP, or speaks another version.
        """
        asked = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": _CLIENT}
        spoken = (await self._result("initialize", asked)).get("protocolVersion")
        if spoken not in _VERSIONS:
            raise HarnessError(f"{self._url}: protocolVersion: found {spoken!r}, accepted are {', '.join(_VERSIONS)}")
        self._headers[_SPOKEN] = spoken
        await self._notify("notifications/initialized")
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        for _ in range(_PAGES):
            result = await self._result("tools/list", page)
            listed = result.get("tools")
            if not isinstance(listed, list):
                raise self._wrong("tools/list", "tools", listed, "a list")
            found += [self._function(one) for one in listed]
            if not result.get("nextCursor"):
                return found
            page = {"cursor": result["nextCursor"]}
        raise HarnessError(f"{self._url}: tools/list: found more than {_PAGES} pages")

    async def call(self, name: str, arguments: Any) -> str:
        """What a tool answers, an error of its own included; raises as ``tools`` does."""
        answer = await self._answer("tools/call", {"name": name, "arguments": arguments})
        if "error" in answer:
            return f"error: {_message(answer['error'])}"
        result = self._object("tools/call", answer)
        blocks = result.get("content")
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise self._wrong("tools/call", "content", blocks, "a list of blocks")
        if not blocks and "structuredContent" in result:
            return json.dumps(result["structuredContent"], ensure_ascii=False)
        return "\n".join(map(_text, blocks))

    async def close(self) -> None:
        """End the session, if the server has named one; of a server that is lost nothing is asked any more."""
        if _SESSION in self._headers:
            try:
                timeout = aiohttp.ClientTimeout(total=_END_S)
                async with self._client.delete(self._url, headers=self._headers, timeout=timeout):
                    pass
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass

    def _function(self, tool: Any) -> dict[str, Any]:
        schema = tool.get("inputSchema") if isinstance(tool, dict) else None
        if not isinstance(schema, dict) or not isinstance(tool.get("name"), str):
            raise self._wrong("tools/list", "tools", tool, "objects with name and inputSchema")
        words = {"description": str(tool["description"])} if tool.get("description") else {}
        return {"type": "function", "name": tool["name"], **words, "parameters": schema, "strict": False}

    async def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        answer = await self._answer(method, params)
        if "error" in answer:
            raise HarnessError(f"{self._url}: {method}: {_message(answer['error'])}")
        return self._object(method, answer)

    def _object(self, method: str, answer: dict[str, Any]) -> dict[str, Any]:
        result = answer.get("result")
        if not isinstance(result, dict):
            raise self._wrong(method, "result", result, "an object")
        return result

    async def _answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The server's answer to a request, with ``result`` or ``error``."""
        self._calls += 1
        request = {"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params}
        try:
            async with self._client.post(self._url, json=request, headers=self._headers) as response:
                if response.status != _OK:
                    raise await self._refused(method, response)
                if _SESSION in response.headers:
                    self._headers[_SESSION] = response.headers[_SESSION]
                told = ""
                async for told in _messages(response):
                    answer = _json(told)
                    # A stream may tell of other things before.
                    if isinstance(answer, dict) and answer.get("id") == self._calls and "method" not in answer:
                        return answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"{self._url}: {method}: {str(error) or 'no answer in time'}") from None
        raise HarnessError(f"{self._url}: {method}: found {told[:_TOLD]!r}, accepted is an answer of JSON-RPC")

    async def _notify(self, method: str) -> None:
        try:
            sent = {"jsonrpc": "2.0", "method": method}
            async with self._client.post(self._url, json=sent, headers=self._headers) as response:
                if response.status not in {_OK, _ACCEPTED}:
                    raise await self._refused(method, response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"{self._url}: {method}: {str(error) or 'no answer in time'}") from None

    async def _refused(self, method: str, response: aiohttp.ClientResponse) -> HarnessError | InfrastructureError:
        told = f"{self._url}: {method}: status {response.status}"
        if response.status == _GONE and _SESSION in self._headers:
            return InfrastructureError(f"{told}: the server has forgotten the session")
        text = await response.text(errors="replace")
        return HarnessError(f"{told}, found {text[:_TOLD]!r}, accepted is an answer of JSON-RPC")

    def _wrong(self, method: str, field: str, found: Any, accepted: str) -> HarnessError:
        return HarnessError(f"{self._url}: {method}: {field}: found {str(found)[:_TOLD]}, accepted is {accepted}")


async def _messages(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Texts of the messages in an answer, as they come."""
    if response.content_type != "text/event-stream":
        yield await response.text(errors="replace")
        return
    rest = b""
    async for part in response.content.iter_any():
        *events, rest = (rest + part).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            lines = event.decode(errors="replace").split("\n")
            data = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:"))
            if data:
                yield data


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _message(error: Any) -> str:
    return str(error.get("message") if isinstance(error, dict) else error)[:_TOLD]


def _text(block: dict[str, Any]) -> str:
    """What a model of text reads of a block; of a picture or a sound that it is one."""
    inner = block.get("resource") if block.get("type") == "resource" else block
    text = inner.get("text") if isinstance(inner, dict) else None
    return text if isinstance(text, str) else f"[{block.get('type')}: not shown]"
