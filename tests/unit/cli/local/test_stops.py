"""Signals after a run's end, in a process of their own."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from echorl_cli.local.outcome import asking_to_stop, ignore_stops

async def main():
    stops = asking_to_stop()
    for number in stops:
        asyncio.get_running_loop().add_signal_handler(number, print, "seen")
    ignore_stops(stops)

asyncio.run(main())
print("ended", flush=True)
sys.stdin.read()
sys.exit(5)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_has_ended_keeps_its_exit_code(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ended\n"
        process.send_signal(number)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (5, b"")
