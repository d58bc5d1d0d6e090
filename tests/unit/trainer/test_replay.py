"""Replaying recorded batches: the same bits every time, the newest record of a step, and clear refusals."""

import json
import shutil
from pathlib import Path

import pytest

from echorl_core.arrays import pack
from echorl_core.rundir import step_name
from echorl_core.wire.batch import RankBatch, StopNotice
from echorl_testing.trainer.batches import rank_batch, record
from echorl_testing.trainer.tiny_learner import tiny_config
from echorl_trainer.client import WrongBatch
from echorl_trainer.parallel import Ranks
from echorl_trainer.replay import RecordedBatches, parse, replay


def test_replay_is_the_same_bits_every_time(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    record(tmp_path / "batches", 3)
    first = replay(tiny_config(model), [tmp_path / "batches"], tmp_path / "a", ranks=ranks)
    again = replay(tiny_config(model), [tmp_path / "batches"], tmp_path / "b", ranks=ranks)
    assert first == again == json.loads((tmp_path / "a" / "result.json").read_text())
    assert first["step"] == 3
    lines = [json.loads(line) for line in (tmp_path / "a" / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0]["trained_tokens"] > 0
    assert lines[0]["metrics"]["loss/total"] is not None


def test_replay_in_two_halves_ends_like_one(ranks: Ranks, model: Path, tmp_path: Path) -> None:
    record(tmp_path / "batches", 4)
    config, batches = tiny_config(model), [tmp_path / "batches"]
    whole = replay(config, batches, tmp_path / "whole", ranks=ranks)
    half = replay(config, batches, tmp_path / "half", ranks=ranks, last_step=2, save=True)
    assert half["step"] == 2
    checkpoint = tmp_path / "half" / "checkpoint"
    alone_ = replay(config, [], tmp_path / "loaded", ranks=ranks, checkpoint=checkpoint)
    assert alone_ == half
    rest = replay(config, batches, tmp_path / "rest", ranks=ranks, checkpoint=checkpoint)
    assert rest == whole != half


def test_last_folder_that_has_a_step_counts(tmp_path: Path) -> None:
    record(tmp_path / "attempt_1", 3)
    record(tmp_path / "attempt_2", 3)
    shutil.rmtree(tmp_path / "attempt_2" / step_name(1))
    later = rank_batch(2, attempt=2)
    (tmp_path / "attempt_2" / step_name(2) / "rank_0.bin").write_bytes(pack(later))
    source = RecordedBatches([tmp_path / "attempt_1", tmp_path / "attempt_2"], rank=0, num_ranks=1)
    found = [source.batch(step) for step in (1, 2)]
    assert [batch.attempt for batch in found if isinstance(batch, RankBatch)] == [1, 2]
    assert source.batch(4) == StopNotice(reason="finished", step=3, checkpoint=False)


def test_of_attempts_the_newest_counts_in_whatever_order_a_shell_names_them(tmp_path: Path) -> None:
    for attempt in (8, 11):
        (tmp_path / f"attempt_{attempt}" / step_name(1)).mkdir(parents=True)
        data = pack(rank_batch(1, attempt=attempt))
        (tmp_path / f"attempt_{attempt}" / step_name(1) / "rank_0.bin").write_bytes(data)
    folders = sorted(map(str, tmp_path.iterdir()))
    assert folders[0].endswith("attempt_11")
    options = parse(["--config", "c", "--batches", *folders, "--out", "o"])
    batch = RecordedBatches(options.batches, rank=0, num_ranks=1).batch(1)
    assert isinstance(batch, RankBatch)
    assert batch.attempt == 11


def test_gap_in_a_recording_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "batches", 3)
    shutil.rmtree(tmp_path / "batches" / step_name(2))
    source = RecordedBatches([tmp_path / "batches"], rank=0, num_ranks=1)
    with pytest.raises(WrongBatch, match="step 2 is missing, step 3 is there"):
        source.batch(2)


def test_recording_for_other_ranks_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "batches", 1, num_ranks=2)
    with pytest.raises(WrongBatch, match="num_ranks is 2, accepted is 1"):
        RecordedBatches([tmp_path / "batches"], rank=0, num_ranks=1).batch(1)


def test_damaged_recording_names_its_file(tmp_path: Path) -> None:
    record(tmp_path / "batches", 1)
    path = tmp_path / "batches" / step_name(1) / "rank_0.bin"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WrongBatch, match=r"step_000001/rank_0\.bin"):
        RecordedBatches([tmp_path / "batches"], rank=0, num_ranks=1).batch(1)


def test_command_line_takes_several_folders() -> None:
    options = parse(["--config", "c", "--batches", "a", "--batches", "b", "--out", "o", "--device", "cpu"])
    assert options.batches == [Path("a"), Path("b")]
    assert (options.checkpoint, options.steps, options.save) == (None, None, False)
