"""What a rank's server tells: state, health, metrics, weights."""

import json
import math
from dataclasses import dataclass
from http.client import HTTPConnection, IncompleteRead

import pytest
import torch
from safetensors.torch import load

from echorl_core.identity import RunIdentity
from echorl_core.run_token import weights_key
from echorl_core.wire.reports import LogprobGap, StepReport
from echorl_trainer.health import Health, Phase, RankProgress, Watch
from echorl_trainer.host_files import file_layouts
from echorl_trainer.metrics import Metrics
from echorl_trainer.server import Server
from echorl_trainer.snapshots import Snapshots
from echorl_trainer.weights import MemoryStore

IDENTITY = RunIdentity("demo", "uid-1", 2)
KEY = weights_key("token")


@dataclass
class Running:
    port: int
    health: Health
    store: MemoryStore
    snapshots: Snapshots

    def get(self, path: str, headers: dict[str, str] | None = None, *, method: str = "GET") -> tuple[int, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, response.read()


@pytest.fixture(scope="module")
def running() -> Running:
    health = Health(step_timeout_s=60)
    server = Server(IDENTITY, 0, health, weights_key=KEY)
    port = server.start("127.0.0.1", 0)
    store = server.weights = MemoryStore(2, f"http://127.0.0.1:{port}")
    layouts = file_layouts({"a": (250_000,)}, torch.float32, single_name="model.safetensors")
    snapshots = Snapshots(layouts, {"adapter_config.json": b"{}"}, pinned=False)
    for version in (1, 2, 3):
        show(store, snapshots, version)
    return Running(port, health, store, snapshots)


def show(store: MemoryStore, snapshots: Snapshots, version: int) -> None:
    snapshot = snapshots.take(version, timeout_s=60, check=lambda: None)
    snapshot.files[0].data.fill_(version)
    store.show(snapshot, b"manifest %d" % version)
    snapshot.release()


def test_state_says_where_the_rank_stands(running: Running) -> None:
    running.health.progress.commit(4)
    running.health.progress.step = 5
    with running.health.progress.during(Phase.WAITING_BATCH, "the orchestrator to seal batch 6"):
        status, body = running.get("/state")
    state = json.loads(body)
    assert status == 200
    assert {key: state[key] for key in ("run", "uid", "attempt", "rank", "phase", "step")} == {
        "run": "demo", "uid": "uid-1", "attempt": 2, "rank": 0, "phase": "waitingBatch", "step": 5,
    }  # fmt: skip
    assert state["waiting_for"] == "the orchestrator to seal batch 6"
    assert state["checkpoint"] == {"committed": [4], "saving": None, "exported": []}


def test_health_and_metrics_are_served(running: Running) -> None:
    assert running.get("/healthz") == (200, b'{"ok": true, "reason": null}')
    status, body = running.get("/metrics")
    assert status == 200
    assert b"echorl_trainer_policy_version" in body


def test_weights_arrive_byte_for_byte(running: Running) -> None:
    for name, size in (("model.safetensors", 1_000_000), ("adapter_config.json", 2), ("manifest.json", 10)):
        path, headers = f"/weights/a2/v3/{name}", {"X-EchoRL-Run": "uid-1", "X-EchoRL-Token": KEY}
        status, body = running.get(path, headers)
        assert status == 200
        assert len(body) >= size
        if name == "model.safetensors":
            assert torch.equal(load(body)["a"], torch.full((250_000,), 3.0))


def test_memory_is_not_filled_again_while_a_reader_has_it() -> None:
    server = Server(IDENTITY, 0, Health(step_timeout_s=60), weights_key=KEY)
    port = server.start("127.0.0.1", 0)
    store = server.weights = MemoryStore(2, f"http://127.0.0.1:{port}")
    layouts = file_layouts({"a": (16_000_000,)}, torch.float32, single_name="model.safetensors")
    snapshots = Snapshots(layouts, {}, pinned=False)
    show(store, snapshots, 1)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/weights/a2/v1/model.safetensors", headers={"X-EchoRL-Token": KEY})
    response = connection.getresponse()
    first = response.read(1000)
    show(store, snapshots, 2)
    with pytest.raises(TimeoutError, match="version 1 by 1"):
        snapshots.take(3, timeout_s=0.1, check=lambda: None)
    assert torch.equal(load(first + response.read())["a"], torch.ones(16_000_000))
    show(store, snapshots, 3)


def test_a_reader_that_stops_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echorl_trainer.server.READ_S", 0.3)
    monkeypatch.setattr("echorl_trainer.server.SLOWEST_BYTES_PER_S", math.inf)
    server = Server(IDENTITY, 0, Health(step_timeout_s=60), weights_key=KEY)
    port = server.start("127.0.0.1", 0)
    store = server.weights = MemoryStore(2, f"http://127.0.0.1:{port}")
    snapshots = Snapshots(
        file_layouts({"a": (8_000_000,)}, torch.float32, single_name="model.safetensors"), {}, pinned=False
    )
    show(store, snapshots, 1)
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/weights/a2/v1/model.safetensors", headers={"X-EchoRL-Token": KEY})
    response = connection.getresponse()
    response.read(1000)
    show(store, snapshots, 2)
    show(store, snapshots, 3)  # waits for the reader to be cut off
    with pytest.raises((IncompleteRead, ConnectionResetError)):
        response.read()


@pytest.mark.parametrize(
    "path",
    ["/weights/a2/v1/model.safetensors", "/weights/a1/v3/model.safetensors", "/weights/a2/v3/..%2Fv_000002%2Fx"],
    ids=["older version", "older attempt", "outside the folder"],
)
def test_what_is_not_kept_is_not_found(running: Running, path: str) -> None:
    status, body = running.get(path, {"X-EchoRL-Token": KEY})
    assert status == 404
    assert b"ask for the newest" in body


def test_request_of_another_run_is_refused(running: Running) -> None:
    assert running.get("/weights/a2/v3/model.safetensors", {"X-EchoRL-Run": "uid-2"})[0] == 409


OPEN = {"/metrics", "/state", "/healthz"}
WEIGHTS, JOIN = "/weights/a{attempt}/v{version}/{name}", "/weights/a{attempt}/v{version}/join"


def test_every_route_has_a_rule_of_access() -> None:
    server = Server(IDENTITY, 0, Health(step_timeout_s=60), weights_key=KEY)
    routes = server.application().router.routes()
    assert {route.resource.canonical for route in routes if route.resource is not None} == OPEN | {WEIGHTS, JOIN}


@pytest.mark.parametrize("key", [None, "", "token", KEY + "0", "\xe9t\xe9"])
def test_weights_need_their_key(running: Running, key: str | None) -> None:
    for method, route in (("GET", WEIGHTS), ("POST", JOIN)):
        path = route.format(attempt=2, version=3, name="model.safetensors")
        status, body = running.get(path, {} if key is None else {"X-EchoRL-Token": key}, method=method)
        assert status == 403
        assert KEY not in body.decode()


def test_a_seat_is_refused_where_nothing_is_broadcast(running: Running) -> None:
    status, body = running.get(JOIN.format(attempt=2, version=3), {"X-EchoRL-Token": KEY}, method="POST")
    assert (status, json.loads(body)) == (409, {"error": "nothing is broadcast: fetch the files"})


def test_port_that_is_taken_is_an_error(running: Running) -> None:
    with pytest.raises(OSError, match=str(running.port)):
        Server(IDENTITY, 1, Health(step_timeout_s=60), weights_key=KEY).start("127.0.0.1", running.port)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_waiting_with_a_living_orchestrator_is_progress() -> None:
    clock = Clock()
    progress = RankProgress(step_timeout_s=60, clock=clock)
    with progress.during(Phase.WAITING_BATCH, "batch 1"):
        for _ in range(10):
            clock.now += 50
            progress.beat(Phase.WAITING_BATCH)
            assert progress.problem() is None
        clock.now += 61
        assert progress.problem() == (
            "waitingBatch, waiting for batch 1: no progress for 61 s, at most 60 s are accepted"
        )


def test_sign_of_life_of_another_part_does_not_hide_a_stuck_step() -> None:
    clock = Clock()
    progress = RankProgress(step_timeout_s=60, clock=clock)
    with progress.during(Phase.TRAINING):
        clock.now += 61
        progress.beat(Phase.WAITING_BATCH)
        assert progress.problem() is not None


def test_step_may_last_ten_times_the_median() -> None:
    clock = Clock()
    progress = RankProgress(step_timeout_s=60, clock=clock)
    for seconds in (20, 20, 50):
        with progress.during(Phase.TRAINING):
            clock.now += seconds
    with progress.during(Phase.TRAINING):
        clock.now += 199
        assert progress.problem() is None
        clock.now += 2
        assert progress.problem() is not None


def test_metrics_take_over_a_report_and_skip_what_is_null() -> None:
    metrics = Metrics(lambda: {"training": 3.0, "waitingBatch": 0.5})
    report = StepReport(
        attempt=1,
        step=9,
        metrics={"loss/rl": 0.5, "loss/ce": None, "env_nll/all": 1.25, "optim/grad_norm": 2.0, "optim/lr": 0.1},
        gap=LogprobGap(tokens=4, max_abs=1e-6, mean_abs=1e-7, over_tolerance=0),
        trained_tokens=10,
        packed_tokens=20,
        seconds={"wait_batch": 1.5, "optimizer": 0.25, "step": 2.0},
    )
    metrics.observe(report)
    value = metrics.registry.get_sample_value
    assert value("echorl_trainer_loss", {"component": "rl"}) == 0.5
    assert value("echorl_trainer_loss", {"component": "ce"}) is None
    assert value("echorl_trainer_env_nll_nats", {"environment": "all"}) == 1.25
    assert value("echorl_trainer_grad_norm") == 2.0
    assert value("echorl_trainer_learning_rate") == 0.1
    assert value("echorl_trainer_trained_tokens_total") == 10
    parts = {
        part: value("echorl_trainer_step_seconds_total", {"part": part}) for part in ("wait_batch", "other", "step")
    }
    assert parts == {"wait_batch": 1.5, "other": 0.25, "step": None}
    assert value("echorl_trainer_phase_seconds_total", {"phase": "training"}) == 3.0


def test_time_is_told_by_phase_while_the_phase_goes_on() -> None:
    clock = Clock()
    progress = RankProgress(step_timeout_s=100, clock=clock)
    clock.now += 5
    with progress.during(Phase.TRAINING):
        clock.now += 2
        assert progress.phase_seconds()["training"] == 2
    with progress.during(Phase.TRAINING):
        clock.now += 1
    spent = progress.phase_seconds()
    assert {phase: seconds for phase, seconds in spent.items() if seconds} == {"starting": 5, "training": 3}


def test_first_failure_of_a_thread_is_raised_in_the_loop() -> None:
    watch = Watch()

    def broken() -> None:
        raise KeyError("first")

    watch.thread("broken", broken).join(10)
    watch.fail(KeyError("second"))
    with pytest.raises(KeyError, match="first"):
        watch.check()
