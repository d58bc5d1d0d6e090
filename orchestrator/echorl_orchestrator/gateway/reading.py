"""What several dialects read alike of a request's fields."""

import json
from collections.abc import Mapping
from typing import Any

from echorl_orchestrator.chat.messages import MessageError


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
