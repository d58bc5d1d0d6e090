"""The benchmark of long contexts at a size for a CPU: two ranks train packs together."""

from benchmarks.long_context import Case, measured, table
from echorl_testing.campaign import of_benchmark
from echorl_testing.trainer.gang import on_ranks
from echorl_trainer.seeded import SHAPES, write_seeded_model


@of_benchmark("long context")
def test_ranks_train_packs_together(tmp_path):
    write_seeded_model(tmp_path / "m", SHAPES["tiny"], 0, tie=True)
    case = Case(tokens=129, context=2, ranks=2, checkpointing="full", repeats=1)
    first, second = on_ranks(2, measured, case, tmp_path / "m", "cpu")
    assert first["peak_gib"] is None
    assert first["tokens_per_s"] == 2 * 129 / first["step_s"]
    assert second["step_s"] > 0
    lines = table([{"tokens": 129, "context": 2, **first}, {"tokens": 131_072, "context": 1}]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| 129", "2"], ["| 131,072", "1"]]
    assert lines[-1] == "| 131,072 | 1 | does not fit |  |  |"
