"""A run's folder, written by hand: two attempts, an eval, an agent with two branches, all episodes of one step."""

import json
from pathlib import Path

from echorl_cli.view.folders import shown_runs
from echorl_cli.view.watch import Watch
from echorl_orchestrator.records.episode_table import parquet


def episode(name, step, reward, **more):
    made = {"kind": "train", "step": step, "attempt": 1, "episode": name, "environment": "shell", "task_key": "t"}
    made |= {"group": name.partition("-")[0], "stop": "terminated", "in_batch": True, "filters": [], "advantage": 0.0}
    return {**made, "reward": reward, "messages": [{"role": "user", "content": f"I am {name}"}], "turns": [], **more}


def whole(name, step, reward, **more):
    """A row of a Parquet file."""
    row = episode(name, step, reward, **more)
    return {**row, "messages": json.dumps(row["messages"]), "turns": 2, "state": '{"diff": "d"}'}


def lines(path: Path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def step(number, attempt=1, reward=0.5, **more):
    return {"step": number, "attempt": attempt, "reward/all/mean": reward, **more}


TURNS = [
    {"start_s": 0.0, "end_s": 1.0, "tool_s": 0.5, "tokens": 7, "aborted": False, "branch": 0, "unused": None},
    {"start_s": 0.2, "end_s": 0.6, "tool_s": 0.0, "tokens": 2, "aborted": False, "branch": 1, "unused": "sideCall"},
]
BRANCHES = [
    {"branch": 0, "unused": None, "messages": [{"role": "user", "content": "mend it"}]},
    {"branch": 1, "unused": "sideCall", "messages": [{"role": "user", "content": "a title"}]},
]


def failed(name, step, error_class, error_kind, error):
    """A row of an episode that failed, as both kinds of file have it."""
    told = {"error_class": error_class, "error_kind": error_kind, "error": error, "phase": "run"}
    return episode(name, step, None, stop="error", in_batch=False, advantage=None, **told)


NAMES = {
    *("kind", "step", "attempt", "episode", "environment", "task_key", "group", "in_batch", "reward", "advantage"),
    *("filters", "stop", "turns", "state", "messages", "error_class", "error_kind", "error", "phase"),
}


def written(made: Path) -> Path:
    """The run in the folder ``made``, which is there afterwards."""
    records = made / "records" / "attempt_1"
    made.mkdir()
    (made / "run.json").write_text('{"uid": "u1", "name": "debate", "created": ""}')
    lines(records / "steps.jsonl", step(1, reward=0.25), step(2, entropy=2.0), step(3, reward=None))
    lines(
        records / "episodes.jsonl",
        episode("g1-e0", 1, 1.0, stop="timeout", advantage=0.5, conversations=BRANCHES, turns=TURNS, info={"log": "l"}),
        episode("g1-e1", 1, 0.0, in_batch=False, filters=["zeroAdvantage"]),
        episode("g2-e0", 2, 1.0),
        episode("v1-e0", 2, 0.75, kind="eval", environment="held-out", in_batch=None, advantage=None),
    )
    lines(records / "evals.jsonl", {"step": 2, "attempt": 1, "environment": "held-out", "reward": 0.75})
    lines(records / "evals.jsonl", {"step": 3, "attempt": 1, "environment": "held-out", "skipped": "too late"})
    files = records / "episodes"
    files.mkdir()
    table = [whole("g2-e0", 2, 1.0), whole("g2-e1", 2, -1.0, environment="search", advantage=-1.0)]
    (files / "step_000002.parquet").write_bytes(parquet([{k: v for k, v in r.items() if k in NAMES} for r in table]))
    return made


def watch_of(*roots):
    """The watch, after it has taken in what is there, and a cursor."""
    watch = Watch(shown_runs(list(roots)))
    while watch.look():
        pass
    return watch, watch.cursor()
