"""Episodes of an OpenEnv server as text.

user       what reset shows
assistant  act(word="crane")  -> tool  what the step shows       or: its words are one field of the action
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from echorl_orchestrator.environments.contract import Action, Environment, Span, Step
from echorl_orchestrator.environments.numbered_tasks import NumberedTasks
from echorl_orchestrator.environments.openenv.session import ActionRefused, Answer, Session, action_schema
from echorl_orchestrator.environments.openenv.splits import count_tasks
from echorl_orchestrator.failures import BadInputError, HarnessError

TOOL = "act"
"""Name of the tool that takes an action."""
_URL = re.compile(r"https?://[A-Za-z0-9_.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_./@-]*)?")
_SEEDS = 1024
_NO_REWARD = "the server ended the episode without a reward: let args.unrewarded say what that is worth"


class OpenEnvArgs(BaseModel):
    """Arguments of ``openenv:<url>``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: str | None = None
    """Tasks are those that the server has in this split (``splits``); None: they are seeds."""
    num_tasks: int | None = Field(default=None, ge=1)
    """The first tasks alone; None: all of a split, or 1024 seeds."""
    seed: int = Field(default=0, ge=0)
    """Of the first task; ``reset`` is given this one, ``seed + 1``, and so on."""
    reset: dict[str, Any] = {}
    """More parameters of every ``reset``."""
    system: str | None = None
    """A system message before the first observation."""
    action: str | None = None
    """The action's field that the model's words become; None: it calls a tool with the fields of the action."""
    observation: str | None = None
    """The observation's field that is shown; None: all of it, as JSON."""
    reward: Literal["sum", "last"] = "sum"
    """What becomes of the rewards of an episode's steps."""
    unrewarded: float | None = Field(default=None, strict=False)
    """What an episode is worth in which the server gave no reward; None: it failed."""
    call_timeout_s: float = Field(default=60.0, gt=0, strict=False)
    """For a reset, a step or the state."""
    room_timeout_s: float = Field(default=60.0, ge=0, strict=False)
    """How long an episode waits while the server has as many sessions as it takes."""
    start_timeout_s: float = Field(default=60.0, ge=0, le=100, strict=False)
    """How long a server that is not there yet is waited for when the run starts."""


@dataclass(frozen=True)
class _Said:
    """What the model is told of one of its actions."""

    text: str
    over: bool = False
    """The episode is done."""
    by_server: bool = False


class OpenEnvEpisode:
    """One episode; a ``TextEnv``."""

    def __init__(self, url: str, args: OpenEnvArgs, tools: list[dict[str, Any]]) -> None:
        self._url, self._args, self._tools = url, args, tools
        self._session: Session | None = None
        self._reward: float | None = None

    async def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        """What the server's ``reset`` shows, for the task's own seed, and its place in the split.

        Raises:
            InfrastructureError, HarnessError: there is no session, or it cannot be reset.
        """
        args, place = self._args, task["key"]
        # Of a split, keys are places in it; else they are seeds.
        if args.split is None:
            chosen = {"seed": place}
        else:
            chosen = {"seed": args.seed + place, "split": args.split, "index": place}
        asked = {**args.reset, **chosen, "episode_id": episode_id}
        times = {"call_s": self._args.call_timeout_s, "room_s": self._args.room_timeout_s}
        self._session, answer = await Session.opened(self._url, asked, **times)
        system = [] if self._args.system is None else [{"role": "system", "content": self._args.system}]
        shown = {"role": "user", "content": self._shown(answer)}
        return Step([*system, shown], tools=self._tools, terminated=answer.done)

    async def step(self, action: Action) -> Step:
        """Take the model's actions, one after the other until the server says that the episode is done.

        Raises:
            InfrastructureError, HarnessError: the server is lost, or its environment failed.
        """
        if self._args.action is not None:
            said = await self._taken({self._args.action: action.text})
            return await self._step([said], [{"role": "user"}])
        if not action.tool_calls:
            return await self._step([_Said(f"Nothing was done: call the tool {TOOL}.")], [{"role": "user"}])
        told: list[_Said] = []
        for call in action.tool_calls:
            if told and told[-1].over:
                told.append(_Said("Nothing was done: the episode is over.", over=True))
            elif call["name"] != TOOL:
                told.append(_Said(f"There is no tool {call['name']}; call {TOOL}."))
            else:
                told.append(await self._taken(call["arguments"]))
        heads = [{"role": "tool", "tool_call_id": one.get("id", ""), "name": one["name"]} for one in action.tool_calls]
        return await self._step(told, heads)

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.close()

    async def _taken(self, fields: dict[str, Any]) -> "_Said":
        assert self._session is not None  # noqa: S101 - it was reset
        try:
            answer = await self._session.step(fields)
        except ActionRefused as error:
            return _Said(f"The action was refused: {error}")
        if answer.reward is not None:
            before = self._reward or 0.0
            self._reward = before + answer.reward if self._args.reward == "sum" else answer.reward
        return _Said(self._shown(answer), over=answer.done, by_server=True)

    async def _step(self, told: Sequence["_Said"], heads: Sequence[dict[str, Any]]) -> Step:
        """What is told, one for each message; what the server did not say is a warning of ours."""
        messages = [{**head, "content": said.text} for head, said in zip(heads, told, strict=True)]
        ours = [Span(place, 0, len(said.text)) for place, said in enumerate(told) if not said.by_server]
        reward = self._args.unrewarded if self._reward is None else self._reward
        if not told[-1].over:
            return Step(messages, reward=reward, warnings=ours)
        if reward is None:
            raise HarnessError(_NO_REWARD)
        assert self._session is not None  # noqa: S101 - it was reset
        state = await self._session.state()
        return Step(messages, reward=reward, terminated=True, info={"state": state}, warnings=ours)

    def _shown(self, answer: Answer) -> str:
        found = {name: value for name, value in answer.observation.items() if name != "metadata" or value}
        name = self._args.observation
        if name is None:
            return json.dumps(found, ensure_ascii=False)
        if name not in found:
            raise HarnessError(f"args.observation: found {name!r}, accepted are {', '.join(found) or 'no fields'}")
        value = found[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def build(url: str, /, **args: Any) -> Environment:
    """The environment of the server at ``url``.

    Raises:
        BadInputError: the address is none, no server of OpenEnv answers there, or its actions lack the field.
    """
    if not _URL.fullmatch(url):
        raise BadInputError(f"openenv: found {url!r}, accepted is the address of a server, http://HOST:PORT")
    url, checked = url.rstrip("/"), OpenEnvArgs.model_validate(args)
    schema = asyncio.run(action_schema(url, checked.start_timeout_s))
    fields = schema.get("properties")
    names = [name for name in fields if name != "metadata"] if isinstance(fields, dict) else []
    if checked.action is not None and checked.action not in names:
        raise BadInputError(f"openenv: args.action: found {checked.action!r}, accepted are {', '.join(names)}")
    tools = [] if checked.action is not None else [_tool(schema, names)]
    return Environment(_tasks(url, checked), text_env=partial(OpenEnvEpisode, url, checked, tools))


def _tasks(url: str, args: OpenEnvArgs) -> NumberedTasks:
    if args.split is None:
        return NumberedTasks(args.seed, args.num_tasks or _SEEDS)
    count = asyncio.run(count_tasks(url, args.split))
    return NumberedTasks(0, min(count, args.num_tasks or count))


def _tool(schema: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The tool that takes an action; its parameters are the action's fields but for the wire's own."""
    parameters = {
        "type": "object",
        "properties": {name: schema["properties"][name] for name in names},
        "required": [name for name in schema.get("required", []) if name in names],
    }
    parameters |= {name: schema[name] for name in ("$defs",) if name in schema}
    words = str(schema.get("description") or "Take an action.")
    return {"type": "function", "function": {"name": TOOL, "description": words, "parameters": parameters}}
