"""Each thing that an engine can get wrong with an adapter ends the preflight with a message of its own."""

import aiohttp
import pytest

from echorl_cli.preflight.calls import EngineCalls
from echorl_cli.preflight.checks import CheckFailed, Checks
from echorl_testing.engines.adapter_server import rehearsed, serving


async def checked(fault):
    said = []
    # What a busy machine does to requests is no fault of the engine.
    max_slowdown = 3.0 if fault == "slow" else 1000.0
    async with serving(fault) as url, aiohttp.ClientSession() as session:
        calls = EngineCalls(session, url, run_uid="uid", token="token")
        await Checks(calls, rehearsed(), max_slowdown=max_slowdown, say=said.append).run()
    return said


async def test_an_engine_that_does_everything_right_passes():
    said = await checked("none")
    assert [line.partition(":")[0] for line in said[:4]] == [
        "version 0 is the model itself",
        "version 1, after a step",
        "5 swaps took effect",
        "8 requests for the adapter and 8 for the base at once",
    ]
    assert "times as long" in said[4]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("open", "before version 0 a request for policy got HTTP 200, accepted is 409"),
        ("wrong", r"policy, version 1: logprobs differ from the trainer's by 0\.002, accepted is up to 0\.001"),
        ("stale", r"the swap from version 3 to 4 took no effect: logprobs moved by 0"),
        ("refuses", r"the engine: version 3 was refused: shape \[4, 8\]"),
        ("leaks", "base, in one batch with the other, version 0: logprobs differ from the trainer's by 6"),
        ("slow", r"requests for the base take .* times as long beside as many for the adapter, accepted is up to 3"),
    ],
)
async def test_what_is_wrong_is_named(fault, message):
    with pytest.raises(CheckFailed, match=message):
        await checked(fault)
