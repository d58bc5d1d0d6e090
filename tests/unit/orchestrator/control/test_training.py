import pytest

from echorl_orchestrator.control.training import little_to_train


@pytest.mark.parametrize(
    ("trainable", "episodes", "little"), [(0, 4, True), (1, 10, True), (6, 64, True), (2, 10, False), (7, 64, False)]
)
def test_a_tenth_of_a_batch_is_little(trainable: int, episodes: int, *, little: bool) -> None:
    assert little_to_train(trainable, episodes) is little
