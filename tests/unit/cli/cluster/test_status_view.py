import json
from typing import Any

from echorl_cli.cluster.summary import summary, timeline
from echorl_cli.cluster.view import drawn, plain
from echorl_operator.observed.times import to_text
from echorl_testing.operator.observed_worlds import NOW


def entry(phase: str, ago: float, attempt: int = 1) -> dict[str, Any]:
    return {"phase": phase, "since": to_text(NOW - ago), "attempt": attempt, "reason": f"Why{phase}"}


def run(**status: Any) -> dict[str, Any]:
    meta = {
        "name": "terminal-echo",
        "namespace": "research",
        "uid": "u",
        "generation": 2,
        "creationTimestamp": to_text(NOW - 9000),
    }
    return {"metadata": meta, "spec": {"maxSteps": 500}, "status": {"observedGeneration": 2, **status}}


FULL = run(
    phase="Running",
    message="training",
    attempt=2,
    resumeStep=125,
    step=137,
    reward="0.630",
    policy={"trained": 137, "served": {"min": 136, "max": 137}, "stalenessMax": 1},
    checkpoint={
        "step": 125,
        "committedAt": to_text(NOW - 720),
        "sizeBytes": 3 * 2**30,
        "path": "checkpoints/step_000125",
    },
    roles={"trainer": {"ready": 2, "desired": 2}, "inference": {"ready": 3, "desired": 4}},
    restarts=3,
    restartsByRole={"trainer": 1, "orchestrator": 2},
    conditions=[
        {"type": "Ready", "status": "True", "reason": "Training", "message": ""},
        {"type": "Blocked", "status": "False", "reason": "Healed", "message": ""},
    ],
    timeline=[entry("Preparing", 8000), entry("Running", 7958), entry("Restarting", 800, 2), entry("Running", 780, 2)],
)


def test_all_of_it() -> None:
    assert plain(summary(FULL, NOW)).splitlines() == [
        "run         terminal-echo in research, 2 h 30 min old",
        "phase       Running since 13 min",
        "message     training",
        "attempt     2, from step 125",
        "step        137 / 500",
        "reward      0.630",
        "policy      version 137 trained, 136 to 137 served, samples at most 1 old",
        "checkpoint  step 125, 12 min ago, 3.0 GiB, checkpoints/step_000125",
        "roles       trainer 2/2, inference 3/4",
        "restarts    3 (orchestrator 2, trainer 1)",
        "",
        "conditions",
        "  Ready  True  Training",
        "",
        "timeline",
        f"  {to_text(NOW - 8000)}  Preparing   attempt 1  42 s        WhyPreparing",
        f"  {to_text(NOW - 7958)}  Running     attempt 1  1 h 59 min  WhyRunning",
        f"  {to_text(NOW - 800)}  Restarting  attempt 2  20 s        WhyRestarting",
        f"  {to_text(NOW - 780)}  Running     attempt 2  13 min      WhyRunning",
    ]


def test_sandboxes_stand_in_a_line_where_there_are_any() -> None:
    told = {"alive": 3, "starting": 1, "waiting": [{"reason": "QuotaExceeded", "count": 12, "message": "m"}]}
    lines = plain(summary(run(sandboxes={**told, "lost": {"image": 1, "evicted": 2}}), NOW)).splitlines()
    row = "sandboxes   3 alive, 1 starting, 12 waiting (QuotaExceeded), 2 lost (evicted), 1 lost (image)"
    assert lines[-2:] == [row, "restarts    0"]
    assert not any(line.startswith("sandboxes") for line in plain(summary(FULL, NOW)).splitlines())


def test_autoscaling_says_why() -> None:
    told = run(inference={"replicas": 3, "selector": "a=b", "autoscale": "3 engines: for a reason"})
    assert "autoscale   3 engines: for a reason" in plain(summary(told, NOW)).splitlines()
    assert not any(line.startswith("autoscale") for line in plain(summary(FULL, NOW)).splitlines())


def test_a_run_that_nobody_looked_at() -> None:
    bare = run()
    del bare["status"]
    lines = plain(summary(bare, NOW)).splitlines()
    assert lines[1].startswith("notice      the operator has not looked at this run, made 2 h 30 min ago")
    assert "phase       Pending" in lines
    assert "step        - / 500" in lines


def test_a_terminal_gets_the_same_words() -> None:
    drawing = drawn(summary(FULL, NOW))
    assert "\x1b[" in drawing
    assert "terminal-echo in research" in drawing
    assert "WhyRestarting" in drawing


def test_json_has_ages_and_durations() -> None:
    told = json.loads(json.dumps(summary(FULL, NOW)))
    assert (told["step"], told["maxSteps"], told["checkpoint"]["ageSeconds"]) == (137, 500, 720)
    assert [one["seconds"] for one in told["timeline"]] == [42, 7158, 20, 780]


def test_a_run_that_ended_has_no_duration_after_its_end() -> None:
    assert [one["seconds"] for one in timeline([entry("Running", 90), entry("Succeeded", 30)], NOW)] == [60, None]


def test_nulls_in_a_status_are_as_if_they_were_left_out() -> None:
    keys = (
        "message",
        "conditions",
        "timeline",
        "roles",
        "restartsByRole",
        "restarts",
        "attempt",
        "checkpoint",
        "policy",
    )
    run = {"metadata": {"name": "one", "generation": 1}, "spec": {}, "status": {"phase": "Running"}}
    null = {**run, "status": {**dict.fromkeys(keys), "phase": "Running"}}
    assert plain(summary(null, 0.0)) == plain(summary(run, 0.0))


def test_the_useful_share_of_gpu_time_is_told_with_what_else_it_was_for() -> None:
    trainer = {"trainer/useful": 40, "trainer/waiting": 20, "trainer/redone": 5, "trainer/undecided": 999}
    engines = {"inference/useful": 10, "inference/waiting": 5, "inference/stale": 15, "inference/starting": 5}
    goodput = {"usefulPercent": 50, **trainer, **engines, "tokens/stale": 7}
    assert (
        "goodput     50% of GPU time useful, waiting 25%, stale 15%, redone 5%"
        in plain(summary(run(goodput=goodput), NOW)).splitlines()
    )
    assert not any(line.startswith("goodput") for line in plain(summary(FULL, NOW)).splitlines())
