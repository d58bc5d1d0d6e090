"""A real Prometheus scrapes the operator at work; every query of its dashboard has an answer."""

import os
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from echorl_core.termination_message import message_of_end
from echorl_testing.cluster.api import Api
from echorl_testing.cluster.credentials import Connection
from echorl_testing.kube.alert_rules import picks_nothing
from echorl_testing.kube.prometheus import Server, prometheus
from echorl_testing.kube.run_objects import install_crd
from echorl_testing.operator.operator_process import operator_pod
from echorl_testing.operator.operator_world import SPEC, World
from echorl_testing.operator.scripted_cluster import prepared, scripted
from echorl_testing.ports import free_ports
from tools.dashboards.answers import Span, panels
from tools.dashboards.pictures import draw
from tools.metrics_page import roles

pytestmark = pytest.mark.timeout(600)

DASHBOARD = Path(__file__).resolve().parents[2] / "charts" / "echorl" / "dashboards" / "operator.json"
CHOSEN = {"__rate_interval": "20s"}
SECONDS = 240.0
LONGEST_S = 3600.0


@pytest.fixture
async def watched(
    api: Api, connection: Connection, namespace: str, tmp_path: Path
) -> AsyncIterator[tuple[World, Server]]:
    install_crd(api)
    (port,) = free_ports(1)
    settings = {"operatorVersion": "0.1.0"}
    with (
        prometheus(tmp_path / "prometheus") as server,
        operator_pod(connection.kubeconfig, namespace, tmp_path, settings, "--metrics-port", str(port)),
    ):
        server.scrape([([f"127.0.0.1:{port}"], {"pod": "operator-a"})])
        async with scripted(api, namespace) as cluster:
            yield World(api, namespace, cluster, None), server


async def live(world: World) -> None:
    """One run, autoscaled, that goes on after a restart, one that fails because its loss is not finite."""
    autoscaled = {**SPEC["inference"], "autoscale": {"min": 1, "max": 4}}
    world.create(trainer={**SPEC["trainer"], "gpusPerReplica": 1}, inference=autoscaled)
    await world.phase("Running", attempt=1, seconds=SECONDS)
    committed = {"step": 5, "committed_at": datetime.now(UTC).isoformat(timespec="seconds"), "size_bytes": 9}
    world.cluster.orchestrators["one"].say(step=7, reward=0.5, checkpoint=committed)
    await world.until("progress in status", lambda: world.status().get("step") == 7, SECONDS)
    world.cluster.prepare = lambda attempt: prepared(attempt, resume_step=5)
    await world.cluster.end("one-trainer-1", 1, message_of_end("trainer", 1, "index out of range", attempt=1))
    await world.phase("Running", attempt=2, seconds=SECONDS)
    world.cluster.prepare = prepared
    world.create("two")
    await world.until("two runs", lambda: world.status("two").get("phase") == "Running", SECONDS)
    await world.cluster.end("two-trainer-0", 3, message_of_end("trainer", 3, "the loss is not finite", attempt=1))
    await world.until("two fails", lambda: world.status("two").get("phase") == "Failed", SECONDS)
    world.cluster.orchestrators["one"].say(step=9)
    await world.until("more progress", lambda: world.status().get("step") == 9, SECONDS)


async def test_every_query_has_an_answer_in_its_unit(watched: tuple[World, Server], tmp_path: Path) -> None:
    world, server = watched
    began = time.time()

    def scraped(query: str) -> bool:
        return bool(server.ask("query", query=query)["result"])

    # A counter that has moved before it is first scraped has not moved at all.
    await world.until("the leader is scraped", lambda: scraped("echorl_operator_leader == 1"), SECONDS)
    await live(world)
    await world.until(
        "the end is scraped",
        # More than once: a range of points a second apart may end before the newest sample.
        lambda: scraped('count_over_time((echorl_operator_failed_runs{reason="NonFinite"} == 1)[20s:1s]) >= 4'),
        SECONDS,
    )
    span = Span(began, time.time(), 1.0)
    problems = []
    for panel in panels(DASHBOARD, CHOSEN):
        for target in panel.targets:
            lines = server.lines(target.expr, target.legend, span)
            values = [value for line in lines for _, value in line.points]
            low, high = {"s": (0.0, LONGEST_S), "suffix: GPUs": (0.0, 2.5), "suffix: steps": (0.0, 20.0)}.get(
                panel.unit, (0.0, 1e4)
            )
            if not values or not low <= min(values) <= max(values) <= high:
                problems.append(f"{panel.title}: {target.expr}: {values[:3]}")
    assert not problems, "\n".join(problems)
    assert picks_nothing(server, span, ("operator",)) == []
    known = {one.name for one in roles()["operator"]}
    found = {name for name in server.ask("label/__name__/values") if name.startswith("echorl_")}
    bare = {name if name in known else name.rsplit("_", 1)[0] for name in found if not name.endswith("_created")}
    assert bare <= known
    picture = Path(os.environ.get("ECHORL_PICTURES", str(tmp_path))) / "dashboard-operator.png"
    draw(server, DASHBOARD, picture, span, CHOSEN)
    assert picture.stat().st_size > 50_000
