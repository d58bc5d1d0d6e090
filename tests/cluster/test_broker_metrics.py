"""What a broker tells Prometheus of sandboxes that come, wait and are lost, and that the dashboard asks about."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from echorl_testing.ports import free_port
from echorl_testing.sandboxes.broker import Sites
from echorl_testing.waiting import until
from tools.dashboards.answers import panels

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 60.0
DASHBOARD = Path(__file__).resolve().parents[2] / "charts" / "echorl" / "dashboards" / "run.json"


async def scraped(port: int, run: str) -> dict[str, float]:
    """Series of a run that are not 0: name and the labels besides the run's."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    found = {}
    for sample in (one for family in families for one in family.samples if one.value):
        labels = {name: value for name, value in sample.labels.items() if name not in {"namespace", "le"}}
        if labels.pop("run", None) == run and not sample.name.endswith("_created"):
            found[" ".join([sample.name.removeprefix("echorl_broker_"), *labels.values()])] = sample.value
    return found


async def test_sandboxes_are_counted_by_run_and_by_what_became_of_them(brokers: Sites) -> None:
    port = free_port()
    async with brokers(None, "--metrics-port", str(port), "--reap-every", "0.2") as at:
        run, asker = at.run(concurrency=1)
        run.start_orchestrator()

        async def shows(wanted: str) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while wanted not in await scraped(port, "one"):
                    pass

        for key in "abcd":
            assert (await asker.put(key))[0] == 202
        fifth = asyncio.create_task(asker.put("e", wait_s=PATIENCE_S))
        await shows("sandboxes_waiting limit")
        run.up()
        assert (await asker.put("a"))[0] == (await asker.put("a"))[0] == 200
        await shows("sandboxes ready")
        pods = {pod["metadata"]["annotations"]["echorl.dev/sandbox-key"]: pod for pod in run.sandboxes()}
        evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        run.play(pods["b"]["metadata"]["name"], evicted)
        assert (await asker.get("b"))[0] == (await asker.get("b"))[0] == 410
        await shows("sandboxes ended")
        assert [await asker.delete(key) for key in "bbc"] == [204] * 3
        await until(lambda: len(run.sandboxes()) == 3, PATIENCE_S)
        assert (await asker.get("b"))[0] == 410  # gone for good, and counted before
        run.up()
        assert (await fifth)[0] == 200
        assert (await asker.put("f", volumes={"/agent": "/a.tar"}))[0] == 410
        told = await scraped(port, "one")
        assert told["sandboxes_made_total"] == 5
        assert told["sandbox_ready_seconds_count"] == 2
        assert told["sandboxes_failed_total evicted"] == 1
        assert told["sandboxes_failed_total refused"] == 1
        kept, of_kept = at.run("kept", warmReplicas=1)
        kept.start_orchestrator()
        assert (await of_kept.put("a"))[0] == 202
        await until(lambda: len(kept.sandboxes()) == 1, PATIENCE_S)
        kept.up()
        assert (await of_kept.put("a"))[0] == 200
        await until(lambda: len(kept.sandboxes()) == 2, PATIENCE_S)
        kept.up()
        async with asyncio.timeout(PATIENCE_S):
            while (await scraped(port, "kept")).get("sandboxes warm") != 1:
                pass
        assert (await of_kept.put("b"))[0] == 200
        assert (await scraped(port, "kept"))["sandboxes_claimed_total"] == 1
        asked = {
            metric
            for panel in panels(DASHBOARD, {})
            for one in panel.targets
            for metric in re.findall(r"echorl_broker_(\w+)", one.expr)
        }
        assert asked - {"sandboxes_waiting"} <= {name.split()[0] for name in told}
