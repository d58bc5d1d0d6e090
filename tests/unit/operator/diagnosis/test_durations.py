import pytest

from echorl_operator.diagnosis.durations import span, waited


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5, "less than a minute"), (250, "4 min"), (1500, "over 20 min"), (7200, "over 2 h"), (90000, "over 25 h")],
)
def test_waits(seconds: float, text: str) -> None:
    assert waited(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (42, "42 s"),
        (250, "4 min 10 s"),
        (3600, "1 h"),
        (3605, "1 h"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text
