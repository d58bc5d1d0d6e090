"""Deadlines of stages, and who is to blame for a sandbox that is gone."""

import asyncio

import pytest

from echorl_orchestrator.environments.builtin.parts.swe.box import Ran, harness_of, joined, within
from echorl_orchestrator.failures import HarnessError, InfrastructureError
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLoss


async def test_a_stage_that_does_not_end_is_ended_and_named() -> None:
    with pytest.raises(InfrastructureError, match=r"row-1: create the sandbox: not done after 0.01 s"):
        async with within(0.01, "row-1: create the sandbox"):
            await asyncio.Event().wait()
    with pytest.raises(HarnessError, match="setup: not done"):
        async with within(0.01, "setup", HarnessError):
            await asyncio.Event().wait()


@pytest.mark.parametrize("loss", SandboxLoss)
def test_what_a_row_itself_uses_up_is_no_agents_doing(loss: SandboxLoss) -> None:
    expected = HarnessError if loss is SandboxLoss.OVERUSED else SandboxError
    with pytest.raises(expected), harness_of("row-1", "grading"):
        raise SandboxError(loss, "gone")


@pytest.mark.parametrize(
    ("ran", "told"),
    [
        (Ran(3, "first\nlast\n"), "ended with 3: last"),
        (Ran(137, "", late=True), "ran out of time"),
        (Ran(137, "x", out_of_memory=True), "ran out of memory: x"),
        (Ran(137, "x", out_of_processes=True), "ran out of processes: x"),
        (Ran(137, "half"), "ended with 137: half"),
        (Ran(0, ""), "ended with 0"),
    ],
)
def test_how_a_command_went_is_told_in_a_line(ran: Ran, told: str) -> None:
    assert ran.told() == told
    assert ran.well == (ran.code == 0)
    assert ran.killed == (told == "ended with 137: half")


def test_paths_of_any_bytes_are_told_to_xargs() -> None:
    assert joined(["a b", "\udcff\n"]) == b"a b\0\xff\n\0"
