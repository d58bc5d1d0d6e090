"""A real Prometheus scrapes a real run, through a restart of the gang; every query of its dashboard has an answer."""

import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from echorl_testing import campaign
from echorl_testing.kube.alert_rules import picks_nothing
from echorl_testing.kube.prometheus import Server, prometheus
from echorl_testing.local.local_run import SUPPORT, LocalRun, digits, local_run, manifest, write_model
from tools.dashboards.answers import Panel, Span, marks, panels
from tools.dashboards.pictures import draw
from tools.metrics_page import roles

Point = tuple[float, float]

pytestmark = [pytest.mark.vllm, campaign.ALL, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "charts" / "echorl" / "dashboards" / "run.json"
CHOSEN = {"namespace": "training", "run": "faults", "__rate_interval": "20s"}
STEPS = int(os.environ.get("ECHORL_MONITORED_STEPS", "14"))
BEFORE_TRAINING_S = 20.0
"""Shown in the picture of the wait for engines."""
SHARE_OF_RATES = 2.0
"""A process that is kept waiting for a processor shows in one scrape what belongs to several."""
VOCABULARY = 260
"""Of the model's tokenizer, at most; its logarithm bounds entropies."""


def talking() -> dict[str, Any]:
    """Environment tokens to learn from, whatever random weights say."""
    return {
        "name": "talking",
        "type": "import:echorl_testing.orchestrator.talking_environment:talking",
        "maxTurns": 2,
        "sampling": {"temperature": 1.0, "maxCompletionTokens": 8},
    }


@dataclass(frozen=True)
class Watched:
    server: Server
    span: Span
    seconds: float


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitored")
    document = manifest(
        write_model(folder / "model"),
        maxSteps=STEPS,
        code={"path": str(SUPPORT)},
        inference={
            "replicas": 1,
            "gpusPerReplica": 0,
            "tensorParallel": 1,
            # Among 260 tokens any one has often been there before.
            "speculative": {"method": "ngram", "promptLookupMin": 1},
        },
        environments={
            "train": [digits(), {**talking(), "echo": {"user": {"alpha": 0.05}}}],
            "eval": [{**talking(), "name": "held-out", "interval": 2, "atStart": True, "numExamples": 4}],
        },
    )
    with prometheus(folder / "prometheus") as server, local_run(folder / "run", document) as run:
        began = time.time()
        run.start({"trainer.mid_step": f"@{STEPS // 2}"})
        with followed(run, server):
            assert run.ended(2000) == 0, run.output()[-4000:]
        ended = time.time()
        yield Watched(server, Span(began, ended, 1.0), ended - began)


@contextmanager
def followed(run: LocalRun, server: Server) -> Iterator[None]:
    """Scrape the processes of the newest attempt, as a pod monitor would."""
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.2):
            server.scrape(groups(run))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def groups(run: LocalRun) -> list[tuple[list[str], dict[str, str]]]:
    labels = {"namespace": "training", "run": "faults"}
    attempt = run.directory.attempt(run.directory.last_attempt())
    orchestrator = run.orchestrator_address()
    ranks = [f"127.0.0.1:{file.read_text().strip()}" for file in attempt.glob("trainer-*.port") if file.read_text()]
    return [
        ([orchestrator] if orchestrator else [], {**labels, "role": "orchestrator"}),
        (ranks, {**labels, "role": "trainer"}),
    ]


def all_panels() -> list[Panel]:
    """All but those of sandboxes: the run has none, and tests/cluster/test_broker_metrics.py asks these."""
    return [panel for panel in panels(DASHBOARD, CHOSEN) if panel.row != "Sandboxes"]


@pytest.mark.parametrize("panel", all_panels(), ids=lambda panel: panel.title)
def test_every_query_has_an_answer_in_its_unit(watched: Watched, panel: Panel) -> None:
    for target in panel.targets:
        lines = watched.server.lines(target.expr, target.legend, watched.span)
        assert lines, f"no series: {target.expr}"
        values = [value for line in lines for _, value in line.points]
        low, high = bounds(panel.unit, watched.seconds)
        if "rate(" in target.expr and panel.unit == "percentunit":
            high = SHARE_OF_RATES
        assert low <= min(values) <= max(values) <= high, f"{target.expr}: {min(values)} to {max(values)}"


def bounds(unit: str, seconds: float) -> tuple[float, float]:
    """What a value of a run of so many seconds can be."""
    return {
        "percentunit": (0.0, 1.05),
        "s": (0.0, seconds),
        "bytes": (0.0, 2.0**60),
        # A token's negative log-likelihood may exceed the uniform's, by no factor that training here reaches.
        "suffix: nats": (-1e-3, 5 * math.log(VOCABULARY)),
        "suffix: tokens/s": (0.0, 1e5),
        "suffix: /s": (0.0, 1e4),
        "suffix: versions": (0.0, 2.0),
        "suffix: GPUs": (0.0, SHARE_OF_RATES),
        "suffix: steps": (-1.0, float(STEPS)),
        "none": (-100.0, 1e4),
    }[unit]


def test_a_restart_is_marked(watched: Watched) -> None:
    (mark,) = marks(DASHBOARD, CHOSEN)
    marked = [when for line in watched.server.lines(mark.expr, mark.legend, watched.span) for when, _ in line.points]
    again = [
        when
        for line in watched.server.lines("echorl_orchestrator_attempt", "", watched.span)
        for when, attempt in line.points
        if attempt == 2
    ]
    assert marked
    assert min(marked) == min(again)


def test_alerts_are_about_series_that_there_are(watched: Watched) -> None:
    assert picks_nothing(watched.server, watched.span, ("orchestrator", "trainer")) == []


def test_counts_add_up(watched: Watched) -> None:
    """What a trainer's phases took is the time that it was there; tokens of both sides are of one order."""
    server, span = watched.server, watched.span
    (spent,) = server.lines("sum by (run) (echorl_trainer_phase_seconds_total)", "", span)
    begin, end = _longest_rise(spent.points)
    assert end[1] - begin[1] == pytest.approx(end[0] - begin[0], rel=0.1, abs=2.0)
    (sampled,) = server.lines("max by (run) (echorl_orchestrator_engines_generation_tokens_total)", "", span)
    (ended,) = server.lines("max by (run) (echorl_orchestrator_sampled_tokens_total)", "", span)
    # The orchestrator reads an engine's counters every two seconds, and is gone soon after the last episode.
    assert max(value for _, value in sampled.points) >= 0.5 * max(value for _, value in ended.points) > 0


def _longest_rise(points: Sequence[Point]) -> tuple[Point, Point]:
    """First and last of the longest stretch without a drop: the life of one process."""
    lives: list[list[Point]] = [[points[0]]]
    for point in points[1:]:
        if point[1] < lives[-1][-1][1]:
            lives.append([])
        lives[-1].append(point)
    longest = max(lives, key=len)
    return longest[0], longest[-1]


def test_everything_that_was_scraped_is_documented(watched: Watched) -> None:
    known = {one.name for metrics in roles().values() for one in metrics}
    found = set(watched.server.ask("label/__name__/values")) - {"echorl_orchestrator_created"}
    ours = {name for name in found if name.startswith("echorl_") and not name.endswith("_created")}
    bare = {name if name in known else name.rsplit("_", 1)[0] for name in ours}
    assert ours
    assert bare <= known


def test_pictures_of_the_panels(watched: Watched, tmp_path: Path) -> None:
    picture = Path(os.environ.get("ECHORL_PICTURES", str(tmp_path))) / "dashboard-run.png"
    (trained,) = watched.server.lines("max (echorl_orchestrator_trained_step)", "", watched.span)
    first = next(when for when, step in trained.points if step > 0)
    began = max(watched.span.start, first - BEFORE_TRAINING_S)
    draw(watched.server, DASHBOARD, picture, Span(began, watched.span.end, 1.0), CHOSEN)
    assert picture.stat().st_size > 50_000
