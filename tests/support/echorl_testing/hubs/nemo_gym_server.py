"""Run by an interpreter that has NeMo Gym: ``nemo_gym_server.py PORT``. Resources servers of that library, by name.

counter    its example of state by session: tools add to a counter and read it; 1.0 where it came to what was expected
mcqa       its questions with letters as answers: one turn, the letter in a box
weather    its example whose tools are behind MCP
broken     the counter, and its verdict raises
"""

import sys

import uvicorn
from fastapi import FastAPI
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


def _application(server, config, name):
    client = ServerClient(head_server_config=BaseServerConfig(host="", port=0), global_config_dict=DictConfig({}))
    made = server(config=config(host="", port=0, entrypoint="", name=name), server_client=client)
    return made.setup_webserver()


if __name__ == "__main__":
    whole = FastAPI()
    for name, server, config in (
        ("counter", StatefulCounterResourcesServer, StatefulCounterResourcesServerConfig),
        ("mcqa", MCQAResourcesServer, MCQAResourcesServerConfig),
        ("weather", ExampleMCPWeatherResourcesServer, ExampleMCPWeatherResourcesServerConfig),
        ("broken", Broken, StatefulCounterResourcesServerConfig),
    ):
        whole.mount(f"/{name}", _application(server, config, name))
    uvicorn.run(whole, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
