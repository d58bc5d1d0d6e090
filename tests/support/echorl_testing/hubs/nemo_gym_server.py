"""Run by an interpreter that has NeMo Gym: ``nemo_gym_server.py PORT``. Resources servers of that library, by name.

counter    its example of state by session: tools add to a counter and read it; 1.0 where it came to what was expected
mcqa       its questions with letters as answers: one turn, the letter in a box
weather    its example whose tools are behind MCP
streamed   one of ours whose MCP keeps sessions and answers by streams, as the protocol's library does by itself
broken     the counter, and its verdict raises
"""

import sys
from contextlib import AsyncExitStack, asynccontextmanager

import uvicorn
from fastapi import FastAPI
from mcp.server.fastmcp import Context, FastMCP, Image
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import DictConfig
from resources_servers.example_mcp_weather.app import (
    ExampleMCPWeatherResourcesServer,
    ExampleMCPWeatherResourcesServerConfig,
)
from resources_servers.example_session_state_mgmt.app import (
    StatefulCounterResourcesServer,
    StatefulCounterResourcesServerConfig,
)
from resources_servers.mcqa.app import MCQAResourcesServer, MCQAResourcesServerConfig


class Broken(StatefulCounterResourcesServer):
    """See the module."""

    async def verify(self, body: dict):
        """Fail."""
        raise RuntimeError("the scale broke")


def _streamed():
    mcp = FastMCP("streamed", streamable_http_path="/mcp")

    @mcp.tool()
    async def add(a: int, b: int, ctx: Context) -> int:
        """Add two numbers."""
        await ctx.info("adding")
        return a + b

    @mcp.tool()
    def draw() -> Image:
        """Draw."""
        return Image(data=b"x", format="png")

    @mcp.tool()
    def fail() -> str:
        """Fail."""
        raise RuntimeError("the scale broke")

    made = mcp.streamable_http_app()
    whole = FastAPI(lifespan=made.router.lifespan_context)

    @whole.post("/seed_session")
    async def seed_session():
        return {"mcp": {"server_name": "streamed", "url_path": "/mcp", "transport": "http", "headers": {"X-Key": "1"}}}

    @whole.post("/verify")
    async def verify():
        return {"reward": 1.0}

    whole.mount("/", made)
    return whole


def _application(server, config, name):
    client = ServerClient(head_server_config=BaseServerConfig(host="", port=0), global_config_dict=DictConfig({}))
    made = server(config=config(host="", port=0, entrypoint="", name=name), server_client=client)
    return made.setup_webserver()


if __name__ == "__main__":
    applications = {"streamed": _streamed()}

    @asynccontextmanager
    async def lifespan(_):
        # Those of what is mounted are nobody's else.
        async with AsyncExitStack() as stack:
            for one in applications.values():
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield

    for name, server, config in (
        ("counter", StatefulCounterResourcesServer, StatefulCounterResourcesServerConfig),
        ("mcqa", MCQAResourcesServer, MCQAResourcesServerConfig),
        ("weather", ExampleMCPWeatherResourcesServer, ExampleMCPWeatherResourcesServerConfig),
        ("broken", Broken, StatefulCounterResourcesServerConfig),
    ):
        applications[name] = _application(server, config, name)
    whole = FastAPI(lifespan=lifespan)
    for name, application in applications.items():
        whole.mount(f"/{name}", application)
    uvicorn.run(whole, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
