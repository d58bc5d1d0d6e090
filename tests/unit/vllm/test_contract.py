"""What is used of vLLM's inside is there, read from the source of the installed version without starting it.

``ECHORL_VLLM_SOURCES`` names more ``vllm`` package folders, separated by colons, to look at another version.
"""

import os
from pathlib import Path

import pytest

from echorl_testing.engine import REPOSITORY
from echorl_vllm.middleware import GENERATION_ROUTES

INSTALLED = sorted((REPOSITORY / ".venv-inference").glob("lib/python3*/site-packages/vllm"))
OTHERS = [Path(path) for path in os.environ.get("ECHORL_VLLM_SOURCES", "").split(":") if path]

USED = {
    "worker extension": ("v1/worker/worker_base.py", ["worker_extension_cls", "load_general_plugins()"]),
    "reload": (
        "model_executor/model_loader/reload/layerwise.py",
        ["def initialize_layerwise_reload(model", "def finalize_layerwise_reload("],
    ),
    "runner": (
        "v1/worker/gpu_model_runner.py",
        ["def get_model(self)", "def reset_mm_cache("],
    ),
    "pause modes": ("v1/engine/core.py", ['PAUSED_ALL if mode == "keep"', "_reset_caches()"]),
    "remote calls": ("entrypoints/serve/dev/rpc/api_router.py", ['"/collective_rpc"', '{"results": response}']),
    "command": ("entrypoints/cli/main.py", ["def main():"]),
    "engine options": (
        "engine/arg_utils.py",
        ['"--worker-extension-cls"', '"--generation-config"', '"--kv-cache-memory-bytes"', '"--logprobs-mode"'],
    ),
    "logprobs": ("config/model.py", ["processed_logprobs"]),
}
ANYWHERE = ['"/pause"', '"/resume"', '"/is_paused"', '"/health"', '"/metrics"', "enable_prompt_tokens_details: bool"]
ANYWHERE += ["disable_uvicorn_access_log: bool", "middleware: list[str]"]
OPTIONAL_ROUTES = {"/v1/chat/completions/batch"}


@pytest.mark.parametrize("package", [*INSTALLED, *OTHERS], ids=str)
def test_what_is_used_is_there(package):
    for what, (path, needed) in USED.items():
        text = (package / path).read_text()
        assert [one for one in needed if one not in text] == [], what
    server = "\n".join(path.read_text() for path in (package / "entrypoints").rglob("*.py"))
    routes = [f'"{route}"' for route in GENERATION_ROUTES - OPTIONAL_ROUTES]
    assert [one for one in [*ANYWHERE, *routes] if one not in server] == []


def test_a_version_is_looked_at():
    assert INSTALLED, "no .venv-inference: make it with `make setup`"
