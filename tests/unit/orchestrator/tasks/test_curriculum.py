"""Pools by difficulty: which tasks an epoch deals, and what a resumed run knows of them."""

import pytest

from echorl_core.config import CurriculumConfig
from echorl_orchestrator.tasks.curriculum import Curriculum, Pool
from echorl_orchestrator.tasks.task_deck import Cursor, TaskDeck
from echorl_testing.orchestrator.scripted_player import environment


def config(**changes: float) -> CurriculumConfig:
    return CurriculumConfig(**{"easy_from": 0.9, "hard_to": 0.1, "keep_easy": 0.0, "keep_hard": 1.0, **changes})


def cursor(length: int = 4, **more: object) -> Cursor:
    return Cursor(environment="terminal", seed=0, length=length, **more)


def dealt(source: Cursor, count: int) -> list[int]:
    return [source.take().index for _ in range(count)]


@pytest.mark.parametrize(
    ("mean", "pool"),
    [(0.0, Pool.HARD), (0.1, Pool.HARD), (0.11, Pool.NORMAL), (0.89, Pool.NORMAL), (0.9, Pool.EASY), (1.0, Pool.EASY)],
)
def test_the_last_group_decides_the_pool(mean: float, pool: Pool) -> None:
    curriculum = Curriculum(config(), length=3)
    assert curriculum.pool(2) is Pool.NORMAL
    curriculum.note(2, 1.0 - mean)
    curriculum.note(2, mean)
    assert curriculum.pool(2) is pool


def test_sizes_by_hand() -> None:
    curriculum = Curriculum(config(), length=5, means={0: 1.0, 1: 0.5, 2: 0.0})
    assert curriculum.sizes() == {Pool.EASY: 1, Pool.NORMAL: 3, Pool.HARD: 1}


def test_an_easy_task_is_passed_over_until_it_is_no_longer_easy() -> None:
    source = cursor(curriculum=config())
    assert sorted(dealt(source, 4)) == [0, 1, 2, 3]
    assert source.curriculum is not None
    source.curriculum.note(1, 1.0)
    assert sorted(dealt(source, 3)) == [0, 2, 3]
    source.curriculum.note(1, 0.5)
    assert sorted(dealt(source, 4)) == [0, 1, 2, 3]


def test_a_share_of_the_easy_tasks_is_dealt() -> None:
    source = cursor(200, curriculum=config(keep_easy=0.25))
    assert source.curriculum is not None
    for index in range(100):
        source.curriculum.note(index, 1.0)
    indices = dealt(source, 1250)  # ten epochs of 100 normal ones and about 25 easy ones each
    easy = sum(index < 100 for index in indices)
    assert easy / 1250 == pytest.approx(0.2, abs=0.03)


def test_when_every_task_is_passed_over_all_are_dealt() -> None:
    source = cursor(3, curriculum=config())
    assert source.curriculum is not None
    for index in range(3):
        source.curriculum.note(index, 1.0)
    assert [source.take().ordinal for _ in range(4)] == [0, 1, 2, 3]
    source.curriculum.note(1, 0.5)
    assert dealt(source, 5) == [1] * 5


def test_the_one_task_that_is_left_is_found_from_every_place_of_an_epoch() -> None:
    source = cursor(5, curriculum=config())
    assert source.curriculum is not None
    assert sorted(dealt(source, 5)) == [0, 1, 2, 3, 4]
    for index in range(1, 5):
        source.curriculum.note(index, 1.0)
    assert dealt(source, 200) == [0] * 200


def test_a_resumed_cursor_deals_as_one_that_was_never_stopped() -> None:
    before = cursor(50, curriculum=config(keep_easy=0.5))
    assert before.curriculum is not None
    for index in range(0, 50, 2):
        before.curriculum.note(index, 1.0)
    for _ in range(20):
        before.settle(before.take().ordinal)
    after = cursor(50, curriculum=config(keep_easy=0.5), state=before.state())
    assert dealt(after, 60) == dealt(before, 60)


def test_another_task_source_begins_without_means() -> None:
    before = cursor(4, curriculum=config())
    assert before.curriculum is not None
    before.curriculum.note(0, 1.0)
    after = cursor(5, curriculum=config(), state=before.state())
    assert after.curriculum is not None
    assert after.curriculum.sizes()[Pool.EASY] == 0


def test_a_deck_notes_groups_where_there_is_a_curriculum() -> None:
    deck = TaskDeck([environment("a", curriculum=config()), environment("b")], {"a": 2, "b": 2}, 0)
    for _ in range(8):
        deck.note(deck.take(), 1.0)
    assert deck.pools() == {"a": {Pool.EASY: 2, Pool.NORMAL: 0, Pool.HARD: 0}}
