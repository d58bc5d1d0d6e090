"""Claude Code and Codex, as they come from the registry, in a sandbox, by the gateway's own dialects."""

import json
from pathlib import Path

import pytest

from echorl_core.config import ModelConfig, SamplingConfig
from echorl_orchestrator.codec import build_codec
from echorl_orchestrator.sandboxes.contract import SandboxLimits
from echorl_orchestrator.sandboxes.process.provider import ProcessSandboxes
from echorl_testing import campaign
from echorl_testing.orchestrator.scripted_policy import write_byte_tokenizer
from echorl_testing.orchestrator.served_gateway import served_gateway
from echorl_testing.sandboxes import agents
from echorl_testing.sandboxes.swe_rows import FIX, ROW, episode

TOOLS = {"claude-code": ("Bash", {"command": FIX, "description": "fix"}), "codex": ("exec_command", {"cmd": FIX})}
LIMITS = SandboxLimits(memory_bytes=4 << 30, disk_bytes=512 << 20, processes=256)


@pytest.mark.parametrize("name", campaign.campaign_params("agents", list(TOOLS), 1))
async def test_an_agent_of_the_table_fixes_a_repository(tmp_path: Path, name: str) -> None:
    agent = agents.installed(name)
    tool, arguments = TOOLS[name]
    call = json.dumps({"name": tool, "arguments": arguments})
    folder = write_byte_tokenizer(tmp_path / "Qwen3-4B")
    codec = build_codec(ModelConfig(path=str(folder), dtype="float32", max_model_len=400_000, renderer="qwen3"))
    prompts: list[str] = []
    async with served_gateway(tmp_path / "tokens") as served:

        def say(prompt: str) -> str:
            prompts.append(prompt)
            answered = "<tool_response>" in prompt
            return "done<|im_end|>" if answered else f"<tool_call>\n{call}\n</tool_call><|im_end|>"

        served.policy.say = say
        sampling = SamplingConfig(max_completion_tokens=4096)
        session = served.open("KEY", codec=codec, max_model_len=400_000, sampling=sampling)
        host, port = served.runner.addresses[0][:2]
        made = ProcessSandboxes(tmp_path / "sandboxes", (host, port), LIMITS)
        try:
            played = await episode(made, name, agent_install=str(agent))
        finally:
            await made.close()
        assert not served.bugs
    assert (played.reward, played.agent_failure) == (1.0, None), played.info
    assert ROW.workdir in prompts[0]
    assert f'"{tool}"' in prompts[0]  # it was offered
    # One conversation of two turns: what came back was what had been sampled.
    (branch,) = session.history.branches
    assert [turn.branch for turn in session.facts.turns] == [branch.number] * 2
