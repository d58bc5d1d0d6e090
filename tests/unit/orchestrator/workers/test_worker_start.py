"""What a worker imports before it knows its environment."""

import subprocess
import sys


def test_a_worker_starts_without_arrays_and_without_an_http_client() -> None:
    """Each takes as long as a tenth of a start or more, and there may be dozens of workers that use neither."""
    code = "import sys, echorl_orchestrator.workers.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert {"numpy", "aiohttp"}.isdisjoint(done.stdout.split())
