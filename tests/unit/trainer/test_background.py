"""How threads beside the loop share Python's lock with it."""

import sys

import pytest

from echorl_trainer.background import share_lock


def test_threads_give_the_lock_away_ten_times_as_often_as_by_default() -> None:
    before = sys.getswitchinterval()
    share_lock()
    assert sys.getswitchinterval() == pytest.approx(before / 10)
