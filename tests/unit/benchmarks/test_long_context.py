"""The benchmark of long contexts at a size for a CPU: packs are trained by one rank each, and by both together."""

from benchmarks.long_context import Case, measured, table
from echorl_testing.trainer.gang import on_ranks
from echorl_trainer.seeded import SHAPES, write_seeded_model


def test_packs_are_trained_by_ranks_alone_and_together(tmp_path):
    write_seeded_model(tmp_path / "m", SHAPES["tiny"], 0, tie=True)
    rows = []
    for context in (1, 2):
        case = Case(tokens=129, context=context, ranks=2, checkpointing="full", repeats=1)
        first, second = on_ranks(2, measured, case, tmp_path / "m", "cpu")
        assert first["peak_gib"] is None
        assert first["tokens_per_s"] == 2 * 129 / first["step_s"]
        assert second["step_s"] > 0
        rows.append({"tokens": case.tokens, "context": context, **first})
    lines = table([*rows, {"tokens": 131_072, "context": 1}]).splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| 129", "1"], ["| 129", "2"], ["| 131,072", "1"]]
    assert lines[-1] == "| 131,072 | 1 | does not fit |  |  |"
