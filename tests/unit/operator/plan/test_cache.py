from echorl_operator.plan.cache import Memo, Memos


def test_a_result_is_found_once_while_its_arguments_are_equal() -> None:
    memo, asked = Memo(), []

    def find(value: int) -> int:
        asked.append(value)
        return value * 2

    spec = {"steps": [1, 2]}
    assert memo.of("x", (spec, b"body"), lambda: find(1)) == 2
    assert memo.of("x", ({"steps": [1, 2]}, b"body"), lambda: find(2)) == 2
    assert memo.of("y", (spec, b"body"), lambda: find(3)) == 6
    assert memo.of("x", ({"steps": [2, 1]}, b"body"), lambda: find(4)) == 8
    assert memo.of("x", (spec, b"body"), lambda: find(5)) == 10
    assert asked == [1, 3, 4, 5]


def test_runs_that_were_not_worked_on_for_long_are_forgotten() -> None:
    memos = Memos(most=2)
    first, second = memos.of_run("1"), memos.of_run("2")
    assert memos.of_run("1") is first
    memos.of_run("3")
    assert memos.of_run("1") is first
    assert memos.of_run("2") is not second
