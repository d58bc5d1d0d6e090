"""How long a run takes to come back: what is read of counters, and the table."""

import math
from typing import Any

from benchmarks.recovery import quantile, table, total

METRICS = """# HELP kept_total words
# TYPE kept_total counter
kept_total{cause="lost"} 120.0
kept_total{cause="stalled"} 5.0
kept_total_more{cause="lost"} 99.0
plain 7
"""


def test_series_of_a_family_are_added_up() -> None:
    assert total(METRICS, "kept_total") == 125
    assert total(METRICS, "kept_total", 'cause="lost"') == 120
    assert total(METRICS, "plain") == 7
    assert total(METRICS, "kept") == 0


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.51, 0.99)] == [2.0, 3.0, 4.0]
    assert math.isnan(quantile([], 0.5))


def row(lost: str, back_s: float, redone: int = 0, **more: float) -> dict[str, Any]:
    return {"lost": lost, "next_s": 1.0, "back_s": back_s, "cpu_s": 4.0, "step_s": 0.5, "redone": redone, **more}


def test_every_loss_has_a_line_and_engines_their_tokens() -> None:
    rows = [row("rank-volume", 10, 4), row("rank-volume", 20, 1), row("engine", 30, again=100, again_s=0.25)]
    assert table(rows).splitlines()[2:] == [
        "| engine | 1 | 1.0, 1.0 s | 30.0, 30.0 s | 4.0 s | 0.5 s | 0.0 |",
        "| rank-volume | 2 | 1.0, 1.0 s | 10.0, 20.0 s | 4.0 s | 0.5 s | 2.5 |",
        "",
        "Sampled again for an engine, p50, p99: 100, 100 tokens; 0.25, 0.25 s of the run's sampling.",
    ]
