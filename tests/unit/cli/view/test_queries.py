"""Questions to the tables of a small folder; every number is worked out by hand."""

import pytest

from echorl_cli.view import queries
from echorl_cli.view.queries import Wanted
from echorl_orchestrator.records.episode_table import parquet
from echorl_testing.view_folder import NAMES, failed, lines, watch_of


def names(rows):
    return [row["episode"] for row in rows]


def test_episodes_count_once_whichever_file_has_them(watched):
    _, tables = watched
    assert names(queries.episodes(tables, Wanted())) == ["g2-e0", "g2-e1", "v1-e0", "g1-e0", "g1-e1"]
    assert queries.totals(tables, Wanted()) == {"episodes": 5, "reward": pytest.approx((1 + 0 + 1 - 1 + 0.75) / 5)}
    assert queries.counted(tables) == {0: 5}


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"reward_from": 0.75}, ["g2-e0", "v1-e0", "g1-e0"]),
        ({"reward_from": 0.0, "reward_to": 0.75}, ["v1-e0", "g1-e1"]),
        ({"stop": "timeout"}, ["g1-e0"]),
        ({"environment": "search"}, ["g2-e1"]),
        ({"step_from": 2, "step_to": 2, "kind": "train"}, ["g2-e0", "g2-e1"]),
        ({"kind": "eval"}, ["v1-e0"]),
        ({"in_batch": False}, ["g1-e1"]),
        ({"in_batch": True}, ["g2-e0", "g2-e1", "g1-e0"]),
        ({"text": "G1-E"}, ["g1-e0", "g1-e1"]),
        ({"text": "' OR 1=1 --"}, []),
        ({"runs": (0,), "step_to": 1}, ["g1-e0", "g1-e1"]),
        ({"runs": (7,)}, []),
    ],
    ids=str,
)
def test_filters(watched, asked, found):
    assert names(queries.episodes(watched[1], Wanted(**asked))) == found


LOST = [
    failed("g7-e0", 7, "infrastructure", "sandbox", "the worker died"),
    failed("g7-e1", 7, "harness", "harness", "calc-1: setup: ended with 9"),
]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"failed": True}, ["g7-e0", "g7-e1", "g8-e0"]),
        ({"failed": True, "step_to": 7}, ["g7-e0", "g7-e1"]),
        ({"error_class": "harness"}, ["g7-e1", "g8-e0"]),
        ({"error_class": "agent"}, []),
        ({"text": "ENDED WITH"}, ["g7-e1", "g8-e0"]),
        ({"text": "sandbox"}, ["g7-e0"]),
        ({"failed": False, "step_from": 2, "kind": "train"}, ["g2-e0", "g2-e1"]),
        ({"in_batch": False, "failed": False}, ["g1-e1"]),
    ],
    ids=str,
)
def test_failed_episodes_are_found_by_class_and_by_what_went_wrong(root, asked, found):
    records = root / "records" / "attempt_1"
    lines(records / "episodes.jsonl", *LOST)
    lost = failed("g8-e0", 8, "harness", "harness", "calc-2: setup: ended with 9")
    row = {name: value for name, value in lost.items() if name in NAMES} | {"messages": None, "turns": 2}
    (records / "episodes" / "step_000008.parquet").write_bytes(parquet([row]))
    _, tables = watch_of(root)
    assert sorted(names(queries.episodes(tables, Wanted(**asked)))) == found
    # They have no reward, and count for no mean.
    assert queries.totals(tables, Wanted())["reward"] == pytest.approx((1 + 0 + 1 - 1 + 0.75) / 5)


@pytest.mark.parametrize(
    ("order", "first"),
    [("newest", "g2-e0"), ("oldest", "g1-e0"), ("best", "g2-e0"), ("worst", "g2-e1")],
)
def test_orders_and_pages(watched, order, first):
    rows = queries.episodes(watched[1], Wanted(), order=order, limit=1)
    assert names(rows) == [first]
    assert first not in names(queries.episodes(watched[1], Wanted(), order=order, offset=1))


def test_choices_are_what_there_is(watched):
    assert queries.choices(watched[1], "environment") == ["held-out", "search", "shell"]
    assert queries.choices(watched[1], "stop") == ["terminated", "timeout"]
    with pytest.raises(ValueError, match="reward"):
        queries.choices(watched[1], "reward")


def test_curves_leave_out_steps_without_a_number(watched):
    _, tables = watched
    assert queries.metric_names(tables) == ["entropy", "reward/all/mean"]
    assert queries.curves(tables, [0], ["reward/all/mean", "entropy", "nothing"]) == {
        "reward/all/mean": {0: [(1, 0.25), (2, 0.5)]},
        "entropy": {0: [(2, 2.0)]},
        "nothing": {},
    }
    assert queries.curves(tables, [], ["entropy"]) == {"entropy": {}}


def test_evals_that_were_played(watched):
    _, tables = watched
    assert queries.eval_environments(tables) == ["held-out"]
    assert queries.eval_curves(tables, [0]) == {"held-out": {0: [(2, 0.75)]}}


def test_a_step_by_its_number(watched):
    _, tables = watched
    assert queries.step_metrics(tables, 0, 2)["entropy"] == 2.0
    assert queries.step_metrics(tables, 0, 9) == {}
    assert queries.last_steps(tables) == {0: {"run": 0, "step": 3, "attempt": 1, "reward": None}}


def test_a_histogram_by_hand(watched):
    found = queries.histogram(watched[1], Wanted(), "reward", bins=4)
    # From -1 to 1 in steps of 0.5: -1 | none | 0 | 0.75, 1, 1
    assert [(row["low"], row["high"], row["count"]) for row in found] == [(-1, -0.5, 1), (0, 0.5, 1), (0.5, 1, 3)]
    same = queries.histogram(watched[1], Wanted(text="g2-e1"), "advantage")
    assert [(row["low"], row["high"], row["count"]) for row in same] == [(-1, -1, 1)]
    assert queries.histogram(watched[1], Wanted(text="nobody"), "reward") == []
