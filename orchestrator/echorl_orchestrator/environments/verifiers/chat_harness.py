"""A harness of verifiers that chats with the model in the worker's own process, and calls the task's tools.

The library's own of this kind, ``null``, does the same in a program that it installs from a package index for every
machine, while episodes run.
"""

import json
from typing import Any

import openai
from verifiers import v1
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null.program import call_mcp, connect_mcp

__all__ = ["ChatHarness"]


class ChatHarness(v1.Harness[v1.HarnessConfig]):  # type: ignore[misc]  # the library is not where types are checked
    """Asks until the model calls no more tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # noqa: PLR0917 - as the library calls it
        self,
        ctx: v1.ModelContext,
        trace: v1.Trace,
        runtime: v1.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: v1.TaskData,
    ) -> v1.ProgramResult:
        """Play to the end; see the library's ``Harness``."""
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        tools, dispatch, known = await connect_mcp({"mcpServers": servers}) if servers else ([], {}, {})
        messages = self._prompt(data)
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0) as client:
            while True:
                answer = await client.chat.completions.create(
                    model=ctx.model, messages=messages, tools=tools or openai.omit
                )
                said = answer.choices[0].message
                messages.append(said.model_dump(exclude_none=True))
                calls: list[Any] = said.tool_calls or []
                if not calls:
                    return v1.ProgramResult(0, "", "")
                for call in calls:
                    content = await _called(call.function, dispatch, known)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    def _prompt(self, data: v1.TaskData) -> list[Any]:
        system, prompt = self.resolve_prompt(data)
        asked = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [*map(message_to_wire, prompt or [])]
        )
        return [*([{"role": "system", "content": system}] if system else []), *asked]


async def _called(function: Any, dispatch: dict[str, Any], servers: dict[str, Any]) -> Any:
    """The tool's result, or what is wrong with the call, for the model."""
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    if function.name not in dispatch:
        return f"error: there is no tool {function.name}"
    return await call_mcp(servers, dispatch, function.name, arguments)
