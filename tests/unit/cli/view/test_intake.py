"""What a run wrote is taken in once, as it comes; what cannot be read is named and stops nothing."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from echorl_cli.view import queries
from echorl_cli.view.queries import Wanted
from echorl_cli.view.tail import Tail
from echorl_orchestrator.records.episode_table import parquet
from echorl_testing.view_folder import episode, lines, step, watch_of


def rewards(tables):
    return queries.curves(tables, [0], ["reward/all/mean"])["reward/all/mean"].get(0, [])


def test_a_last_line_waits_for_its_end(root, watched):
    watch, tables = watched
    path = root / "records" / "attempt_1" / "steps.jsonl"
    line = json.dumps(step(4, reward=1.0))
    with path.open("a") as file:
        file.write(line[:20])
    assert not watch.look()
    with path.open("a") as file:
        file.write(f"{line[20:]}\n")
    assert watch.look()
    assert rewards(tables)[-1] == (4, 1.0)
    assert not watch.look()
    assert watch.notices == []


def test_new_files_and_lines_are_seen_once(root, watched):
    watch, tables = watched
    records = root / "records" / "attempt_1"
    lines(records / "episodes.jsonl", episode("g3-e0", 3, 0.5))
    assert watch.look()
    assert queries.totals(tables, Wanted(step_from=3))["episodes"] == 1
    names = {"kind", "step", "attempt", "episode", "environment", "reward", "stop"}
    rows = [{k: v for k, v in episode(f"g3-e{n}", 3, 0.5).items() if k in names} for n in range(3)]
    (records / "episodes" / "step_000003.parquet").write_bytes(parquet(rows))
    assert watch.look()
    assert queries.totals(tables, Wanted(step_from=3))["episodes"] == 3
    assert not watch.look()


def test_what_a_later_attempt_did_again_is_void(root, watched):
    watch, tables = watched
    (root / "attempts" / "2").mkdir(parents=True)
    (root / "attempts" / "2" / "prepared.json").write_text('{"run_uid": "u1", "resume_step": 1}')
    lines(root / "records" / "attempt_2" / "steps.jsonl", step(2, attempt=2, reward=0.125))
    assert watch.look()
    assert rewards(tables) == [(1, 0.25), (2, 0.125)]
    assert [row["episode"] for row in queries.episodes(tables, Wanted())] == ["g1-e0", "g1-e1"]
    assert queries.eval_environments(tables) == []


def test_another_runs_attempt_is_not_shown(root):
    (root / "attempts" / "2").mkdir(parents=True)
    (root / "attempts" / "2" / "prepared.json").write_text('{"run_uid": "u2", "resume_step": 0}')
    lines(root / "records" / "attempt_2" / "steps.jsonl", step(2, attempt=2, reward=0.125))
    assert rewards(watch_of(root)[1]) == [(1, 0.25), (2, 0.5)]


def test_a_file_that_was_cut_is_read_anew(root, watched):
    watch, tables = watched
    path = root / "records" / "attempt_1" / "steps.jsonl"
    path.write_text(json.dumps(step(1, reward=0.75)) + "\n")
    assert watch.look()
    assert rewards(tables) == [(1, 0.75)]


def test_lines_that_are_no_records_are_named(root):
    path = root / "records" / "attempt_1" / "steps.jsonl"
    with path.open("a") as file:
        file.write('{"attempt": 1}\nno json\n[1]\n' + json.dumps(step(5, reward=1.0)) + "\n")
    watch, tables = watch_of(root)
    assert rewards(tables)[-1] == (5, 1.0)
    (notice,) = watch.notices
    assert notice == f"{path}: found no record in line 4 and 2 more; accepted: records as EchoRL writes them"


def test_an_episode_without_a_name_is_none(root):
    lines(root / "records" / "attempt_1" / "episodes.jsonl", {"step": 4}, episode("g4-e0", 4, "no number"))
    watch, tables = watch_of(root)
    (row,) = queries.episodes(tables, Wanted(step_from=4))
    assert (row["episode"], row["reward"]) == ("g4-e0", None)
    assert "episodes.jsonl: found no record in line 5; accepted" in watch.notices[0]


def test_files_of_other_releases_and_damaged_ones(root):
    folder = root / "records" / "attempt_1" / "episodes"
    few = {"kind": ["train"], "step": [5], "episode": ["old-e0"], "environment": ["shell"]}
    pq.write_table(
        pa.table({**few, "reward": [0.5], "stop": ["terminated"], "episode": ["old-e0"]}),
        folder / "step_000005.parquet",
    )
    pq.write_table(pa.table(few), folder / "step_000006.parquet")
    (folder / "step_000007.parquet").write_bytes(b"PAR1 and no more")
    (folder / ".tmp-step_000008.parquet.1").write_bytes(b"half")
    watch, tables = watch_of(root)
    (row,) = queries.episodes(tables, Wanted(step_from=4))
    assert (row["episode"], row["advantage"], row["in_batch"]) == ("old-e0", None, None)
    older, damaged = sorted(watch.notices)
    assert "step_000006.parquet: found no column reward, stop" in older
    assert "step_000007.parquet: found no episodes" in damaged
    assert queries.totals(tables, Wanted())["episodes"] == 6


@pytest.mark.parametrize(
    "link",
    [
        "records/attempt_2",
        "records/attempt_1/steps.jsonl",
        "records/attempt_1/episodes",
        "records/attempt_1/episodes/step_000009.parquet",
    ],
)
def test_no_link_is_followed(root, tmp_path, link):
    other = tmp_path / "other"
    lines(other / "steps.jsonl", step(9, attempt=2, reward=9.0))
    rows = [{"kind": "train", "step": 9, "attempt": 1, "episode": "x", "environment": "e", "reward": 1.0, "stop": "s"}]
    (other / "step_000009.parquet").write_bytes(parquet(rows))
    place = root / link
    if place.is_dir():
        place.rename(tmp_path / "away")
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(other / place.name if place.suffix else other)
    watch, tables = watch_of(root)
    assert all(point[0] != 9 for point in rewards(tables))
    assert queries.totals(tables, Wanted(step_from=9))["episodes"] == 0
    assert not any("found no episodes" in notice for notice in watch.notices)


def test_the_tables_read_nothing_outside_the_runs(root, tmp_path, watched):
    outside = tmp_path / "outside.parquet"
    pq.write_table(pa.table({"a": [1]}), outside)
    with pytest.raises(Exception, match="disabled by configuration"):
        watched[1].execute("SELECT * FROM read_parquet(?)", [str(outside)])


def test_a_tail_reads_lines_with_their_bytes(tmp_path):
    path = tmp_path / "f"
    tail = Tail(path)
    assert tail.read().texts == []
    path.write_bytes(b"one\ntwo\nth")
    found = tail.read()
    assert (found.texts, found.starts, found.first_number, found.anew) == (["one\n", "two\n"], [0, 4], 1, False)
    with path.open("ab") as file:
        file.write(b"ree\n")
    found = tail.read()
    assert (found.texts, found.starts, found.first_number) == (["three\n"], [8], 3)
    os.truncate(path, 0)
    assert tail.read().anew
    path.write_bytes(b"new\n")
    assert tail.read().texts == ["new\n"]


def test_a_tail_reads_a_line_that_is_longer_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("echorl_cli.view.tail.CHUNK_BYTES", 8)
    path = tmp_path / "f"
    path.write_bytes(b"a" * 30 + b"\nb\n" + b"c" * 30)
    tail = Tail(path)
    assert [tail.read().texts, tail.read().texts, tail.read().texts] == [["a" * 30 + "\n"], ["b\n"], []]
