"""Figures of numbers that no axis can take."""

import math

import pytest

from echorl_cli.report import figures


@pytest.mark.parametrize("value", [1.7e308, -1e308, 1e300, math.inf, math.nan])
def test_a_number_that_no_axis_can_take_is_a_gap_and_the_rest_is_drawn(value: float) -> None:
    steps = [1, 2, 3]
    drawn = figures.lines("reward", {"a": (steps, [0.0, value, 1.0]), "b": (steps, [0.5, 0.6, 0.7])}, y_label="reward")
    assert drawn.startswith("<svg")
    assert figures.lines("x", {"a": ([1, value], [0.0, 1.0])}, y_label="y", references={"r": value}, markers=[value])
    assert figures.stacked("time", [1, 2], {"a": [value, 0.0], "b": [1.0, 1.0]}, y_label="s")
    assert figures.swimlane("turns", [{"start_s": 0.0, "end_s": value, "tool_s": None}])
