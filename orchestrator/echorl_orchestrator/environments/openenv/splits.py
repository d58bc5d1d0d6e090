"""The tasks that an OpenEnv server keeps itself, by its Task API: splits by name, and how many tasks each has.

    GET  /list_environments    ["wordle"]
    GET  /wordle/splits        [{"name": "train", "type": "train"}, {"name": "test", "type": "test"}]
    POST /wordle/num_tasks     {"split": "train"} -> {"num_tasks": 500}; 501 of an environment without tasks of its own

Which of them an episode plays is said to ``reset``, as ``split`` and ``index``.
"""

from typing import Any
from urllib.parse import quote

import aiohttp

from echorl_orchestrator.failures import BadInputError

_OK, _NOT_FOUND, _NOT_IMPLEMENTED = 200, 404, 501
_CALL_S = 30.0
_TOLD = 200
"""Characters of an answer that a message quotes."""


async def count_tasks(url: str, split: str) -> int:
    """How many tasks the server at ``url`` has in ``split``.

    Raises:
        BadInputError: it has no tasks of its own, no such split, none in it, or does not say.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_CALL_S)) as client:
        names = await _told(client, "GET", f"{url}/list_environments")
        if not isinstance(names, list) or len(names) != 1:
            raise BadInputError(f"openenv: {url}/list_environments: found {str(names)[:_TOLD]}, accepted is one name")
        tasks = f"{url}/{quote(str(names[0]), safe='')}"
        splits = await _told(client, "GET", f"{tasks}/splits")
        if not isinstance(splits, list) or not all(isinstance(one, dict) and "name" in one for one in splits):
            raise BadInputError(f"openenv: {tasks}/splits: found {str(splits)[:_TOLD]}, accepted is a list with names")
        known = [one["name"] for one in splits]
        if split not in known:
            raise BadInputError(f"openenv: args.split: found {split!r}, accepted are {', '.join(map(str, known))}")
        answer = await _told(client, "POST", f"{tasks}/num_tasks", {"split": split})
    count = answer.get("num_tasks") if isinstance(answer, dict) else None
    if not isinstance(count, int) or count < 1:
        raise BadInputError(f"openenv: {tasks}/num_tasks of {split!r}: found {str(answer)[:_TOLD]}, accepted are tasks")
    return count


async def _told(client: aiohttp.ClientSession, method: str, address: str, body: Any = None) -> Any:
    try:
        async with client.request(method, address, json=body) as response:
            status, text = response.status, await response.text(errors="replace")
            found = await response.json(content_type=None) if status == _OK else None
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BadInputError(f"openenv: {address}: {str(error) or 'no answer in time'}") from None
    except (ValueError, RecursionError):
        found = None
    if status in {_NOT_FOUND, _NOT_IMPLEMENTED}:
        raise BadInputError(
            f"openenv: args.split: {address} says {status}: the server has no tasks of its own; "
            "leave it out, and tasks are seeds"
        )
    if found is None:
        raise BadInputError(f"openenv: {address}: status {status}, found {text[:_TOLD]!r}, accepted is JSON")
    return found
