"""What several dialects read alike of a request's fields."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from echorl_orchestrator.chat.messages import MessageError
from echorl_orchestrator.gateway.sampling import SamplingRefusedError


def an_object(value: Any, where: str) -> Mapping[str, Any]:
    """``value``, which stands at ``where``.

    Raises:
        MessageError: it is no object.
    """
    if not isinstance(value, Mapping):
        raise MessageError(f"{where}: found {type(value).__name__}, accepted is an object")
    return value


def function_tool(name: Any, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool's definition in OpenAI's form; without parameters it takes any object.

    Raises:
        MessageError: the name or the description is no text, the parameters are no object.
    """
    if not isinstance(name, str) or not isinstance(description or "", str):
        raise MessageError(f"{where}: a tool needs a name, and its description is text")
    schema = {"type": "object"} if parameters is None else an_object(parameters, f"{where}, its parameters")
    function = {"name": name, "description": description or "", "parameters": schema}
    try:
        json.dumps(function, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise MessageError(f"{where}: found half a surrogate pair; accepted is text: {error}") from None
    return {"type": "function", "function": function}


def offered_tools(
    tools: Any, choice: Any, place: str, read: Callable[[Mapping[str, Any], str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The tools that a request offers, none where it chooses none of them.

    Args:
        tools: the request's.
        choice: its choice among them, by its name.
        place: where a definition stands, with a hole for its number.
        read: a definition and where it stands, in OpenAI's form.

    Raises:
        MessageError: the tools are no list of objects.
        SamplingRefusedError: tools are forced.
    """
    if choice not in ("auto", "none"):
        raise SamplingRefusedError("tool_choice", f"found {choice!r}, accepted are 'auto' and 'none'")
    if not isinstance(tools or [], list):
        raise MessageError("tools: accepted is a list of tool definitions")
    places = [place.format(index) for index in range(len(tools or []))]
    definitions = [read(an_object(tool, where), where) for tool, where in zip(tools or [], places, strict=True)]
    return definitions if choice == "auto" else []
