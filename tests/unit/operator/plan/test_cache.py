from echorl_operator.plan.cache import ResultCache, ResultCaches


def test_a_result_is_found_once_while_its_arguments_are_equal() -> None:
    results, asked = ResultCache(), []

    def find(value: int) -> int:
        asked.append(value)
        return value * 2

    spec = {"steps": [1, 2]}
    assert results.of("x", (spec, b"body"), lambda: find(1)) == 2
    assert results.of("x", ({"steps": [1, 2]}, b"body"), lambda: find(2)) == 2
    assert results.of("y", (spec, b"body"), lambda: find(3)) == 6
    assert results.of("x", ({"steps": [2, 1]}, b"body"), lambda: find(4)) == 8
    assert results.of("x", (spec, b"body"), lambda: find(5)) == 10
    assert asked == [1, 3, 4, 5]


def test_runs_that_were_not_worked_on_for_long_are_forgotten() -> None:
    caches = ResultCaches(most=2)
    first, second = caches.of_run("1"), caches.of_run("2")
    assert caches.of_run("1") is first
    caches.of_run("3")
    assert caches.of_run("1") is first
    assert caches.of_run("2") is not second
