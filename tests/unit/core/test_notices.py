import pytest

from echorl_core.notices import time_for_work_s


def test_a_grace_period_leaves_time_for_the_end_itself() -> None:
    graces = {"30": 25.0, "120": 115.0, "4": 0.0, "0": 0.0}
    assert {text: time_for_work_s({"ECHORL_GRACE_S": text}) for text in graces} == graces
    assert time_for_work_s({}) is None


@pytest.mark.parametrize("text", ["", "-1", "30s", "1.5"])
def test_a_wrong_one_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"ECHORL_GRACE_S: found '{text}', accepted are whole seconds"):
        time_for_work_s({"ECHORL_GRACE_S": text})
