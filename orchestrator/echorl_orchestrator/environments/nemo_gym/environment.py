"""Episodes against a resources server: rows of a file, an agent that calls tools, and the server's verdict."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.builtin.parts.data_path import found
from echorl_orchestrator.environments.contract import Environment, Limits, RunnerResult
from echorl_orchestrator.environments.nemo_gym.server import GymSession, check_server
from echorl_orchestrator.environments.numbered_tasks import NumberedTasks
from echorl_orchestrator.failures import AgentError, BadInputError, HarnessError, InfrastructureError

_URL = re.compile(r"https?://[A-Za-z0-9_.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_./@-]*)?")
_PARAMS = "responses_create_params"
_OVER = frozenset({"context_length_exceeded", "turn_limit_exceeded"})
"""The gateway's reasons to refuse one turn more; what was said until then is verified."""
_OK, _SERVER_ERROR = 200, 500


class NemoGymArgs(BaseModel):
    """Arguments of ``nemo-gym:<url>``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    """JSONL file of rows with ``responses_create_params``; a relative path is one in ``spec.code``, or where we run."""
    num_tasks: int | None = Field(default=None, ge=1)
    """The first rows alone."""
    call_timeout_s: float = Field(default=60.0, gt=0, strict=False)
    """For a tool or a verdict."""
    start_timeout_s: float = Field(default=60.0, ge=0, le=100, strict=False)
    """How long a server that is not there yet is waited for when the run starts."""


def build(url: str, /, **args: Any) -> Environment:
    """The environment of the resources server at ``url``.

    Raises:
        BadInputError: the address is none, no resources server answers there, or the file's rows are none of its.
    """
    if not _URL.fullmatch(url):
        raise BadInputError(f"nemo-gym: found {url!r}, accepted is the address of a server, http://HOST:PORT")
    url, checked = url.rstrip("/"), NemoGymArgs.model_validate(args)
    rows = _rows(found(checked.data, "nemo-gym: args.data"))[: checked.num_tasks]
    asyncio.run(check_server(url, checked.start_timeout_s))
    return Environment(NumberedTasks(0, len(rows)), runner=GymRunner(url, rows, checked.call_timeout_s))


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                rows.append(_row(line, f"{path}:{number}"))
    return rows


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{where}: {error}") from None
    params = row.get(_PARAMS) if isinstance(row, dict) else None
    if not isinstance(params, dict) or not isinstance(params.get("input"), str | list):
        raise BadInputError(f"{where}: found no {_PARAMS}.input, accepted are text and a list of items")
    tools = params.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadInputError(f"{where}: {_PARAMS}.tools: found {str(tools)[:100]}, accepted is a list of tools")
    return row  # type: ignore[no-any-return]  # it is a dict by now


class GymRunner:
    """Plays episodes of one server; an ``EpisodeRunner``."""

    def __init__(self, url: str, rows: Sequence[dict[str, Any]], call_s: float) -> None:
        self._url, self._rows, self._call_s = url, rows, call_s

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        """One episode: turns and tools until the model calls none any more, and the server's verdict.

        Raises:
            InfrastructureError, HarnessError, AgentError: what failed; nothing is scored.
        """
        row = self._rows[task["key"]]
        async with GymSession(self._url, self._call_s) as gym:
            tools = _offered(row[_PARAMS].get("tools") or [], await gym.seed(row))
            async with _Policy(f"{base_url}/responses", {**row[_PARAMS], "tools": tools, "model": model}) as policy:
                while items := await policy.turn():
                    calls = [item for item in items if item["type"] == "function_call"]
                    if not calls or policy.cut:
                        break
                    for call in calls:
                        policy.told(call["call_id"], await _answer(gym, tools, call))
            if policy.last is None:
                # Not one turn had room.
                return RunnerResult(None, truncated=True)
            reward, metrics = await gym.verify(row, {**policy.last, "output": policy.output})
        return RunnerResult(reward, metrics, {"row": task["key"]}, policy.cut)


def _offered(own: Sequence[dict[str, Any]], more: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The row's tools and the server's; one that both have is as the row describes it."""
    named = {tool.get("name") for tool in own}
    return [*own, *(tool for tool in more if tool["name"] not in named)]


async def _answer(gym: GymSession, tools: Sequence[dict[str, Any]], call: dict[str, Any]) -> str:
    # By another name it would reach whatever the server has, its verdict too.
    if all(tool.get("name") != call["name"] for tool in tools):
        return json.dumps({"error": f"there is no tool {call['name']}"})
    try:
        arguments = json.loads(call["arguments"])
    except ValueError as error:
        return json.dumps({"error": f"the arguments are no JSON: {error}"})
    return await gym.tool(call["name"], arguments)


class _Policy:
    """The model behind the gateway, as an API of Responses; an asynchronous context."""

    def __init__(self, address: str, params: dict[str, Any]) -> None:
        asked = params["input"]
        self._params = params
        self._asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        self._address = address
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout())
        self.output: list[dict[str, Any]] = []
        """Items that were said and told."""
        self.last: dict[str, Any] | None = None
        """The newest response."""
        self.cut = False
        """It ran into its token limit."""

    async def __aenter__(self) -> "_Policy":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    def told(self, call: str, output: str) -> None:
        """Add what a tool answered."""
        self.output.append({"type": "function_call_output", "call_id": call, "output": output})

    async def turn(self) -> list[dict[str, Any]]:
        """Items of the model's next turn; none when a limit of the run ends the episode.

        Raises:
            InfrastructureError, HarnessError, AgentError: the gateway is lost, refuses the row, or lost its engine.
        """
        try:
            body = {**self._params, "input": [*self._asked, *self.output]}
            async with self._client.post(self._address, json=body) as response:
                answer = await response.json()
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise InfrastructureError(f"gateway: {error}") from None
        if response.status == _OK:
            self.last, self.cut = answer, answer["status"] == "incomplete"
            items: list[dict[str, Any]] = answer["output"]
            self.output += items
            return items
        refusal = answer["error"]
        if refusal["code"] in _OVER:
            return []
        told = f"{refusal['param'] or 'gateway'}: {refusal['message']}"
        # An engine's failure is known where the engines are: of an agent's failure it is asked for there.
        raise AgentError(told) if response.status >= _SERVER_ERROR else HarnessError(f"{_PARAMS}: {told}")
