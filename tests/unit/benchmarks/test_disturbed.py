import random

from benchmarks.disturbed import FIRST, LAST, ROLES, schedule


def test_every_role_is_killed_once_before_one_is_again() -> None:
    for seed in range(50):
        planned = schedule(random.Random(seed), 5)
        steps = [step for step, _ in planned]
        assert steps == sorted(set(steps))
        assert set(steps) <= set(range(FIRST, LAST))
        assert {role for _, role in planned[:3]} == set(ROLES)
        assert len(planned) == 5
