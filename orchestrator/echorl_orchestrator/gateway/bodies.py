"""Bodies of requests, from callers that may send too much, too slowly, or break off in the middle."""

import asyncio
import json
from typing import Any

import aiohttp
from aiohttp import web

LARGEST_BODY = 64 * 2**20
"""Bytes; what an application takes at the most (``client_max_size``). Reports and chat requests are far smaller."""
BODY_S = 60.0
"""For a whole body to arrive."""
DEEPEST = 100
"""Objects and lists within each other; what walks them by recursion has a limit of its own somewhere above."""


async def read_body(request: web.Request, *, within_s: float = BODY_S) -> bytes:
    """The whole body.

    Raises:
        web.HTTPRequestEntityTooLarge: it is larger than the application takes.
        web.HTTPRequestTimeout: it does not arrive within ``within_s``.
        web.HTTPBadRequest: it breaks off, or is not encoded as its headers say.
    """
    try:
        async with asyncio.timeout(within_s):
            return await request.read()
    except TimeoutError:
        raise refused(web.HTTPRequestTimeout, f"the body did not arrive within {within_s:g} s") from None
    except (web.RequestPayloadError, aiohttp.ClientError, ConnectionError, EOFError) as error:
        # A client that hangs up in the middle, chunks or gzip that are none.
        reason = f"the body cannot be read: {type(error).__name__}"
        raise refused(web.HTTPBadRequest, reason) from None


def refused(kind: type[web.HTTPError], message: str) -> web.HTTPError:
    """An answer with ``{"error": message}``."""
    return kind(text=json.dumps({"error": message}), content_type="application/json")


def too_deep(value: Any, deepest: int = DEEPEST) -> bool:
    """Whether decoded JSON nests deeper than ``deepest``; does not recurse itself."""
    level: list[Any] = [value]
    for _ in range(deepest + 1):
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True
