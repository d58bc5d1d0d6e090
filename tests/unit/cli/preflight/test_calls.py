import math

import pytest

from echorl_cli.preflight.calls import distance


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_logprob_that_is_no_number_is_infinitely_far_wherever_it_stands(place: int, value: float) -> None:
    found = [-0.5, -0.25, -1.0]
    assert distance(found, [-0.5, -0.5, -1.0]) == 0.25
    found[place] = value
    assert distance(found, [-0.5, -0.5, -1.0]) == math.inf
