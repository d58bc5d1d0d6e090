"""Numbers of the ECHO table, worked out by hand."""

import math

import pytest

from benchmarks.echo_effect import interval, steps_to, table, variants, windows


def test_windows_of_five_steps() -> None:
    assert windows([0, 0, 0, 0, 5, 10]) == [1.0, 3.0]


def test_the_step_at_which_the_mean_of_five_reaches_a_bar() -> None:
    assert steps_to([0, 0, 0, 0, 5, 10], 1.0) == 5
    assert steps_to([0, 0, 0, 0, 5, 10], 3.0) == 6
    assert steps_to([0, 0, 0, 0, 5, 10], 3.1) is None


def test_an_interval_of_two_values() -> None:
    mean, half = interval([1.0, 3.0])
    # Standard deviation sqrt(2), over sqrt(2), times 12.706.
    assert (mean, half) == (2.0, pytest.approx(12.706))
    assert interval([1.0]) == (1.0, math.inf)


def row(variant: str, seed: int, rewards: list[float]) -> dict[str, object]:
    return {
        "variant": variant,
        "seed": seed,
        "steps": len(rewards),
        "rewards": rewards,
        "reward_last5": rewards[-1],
        "held_out_last": 0.5,
        "nll_change": -0.5,
    }


def test_differences_are_taken_within_a_seed_and_misses_are_told() -> None:
    low, high = [0.0] * 5 + [1.0] * 5, [1.0] * 10
    rows = [row("rl", 0, low), row("rl", 1, high), row("echo", 0, high), row("echo", 1, low)]
    text = table(rows).splitlines()
    assert text[2].startswith("| rl | 2 | 1 ± 0 |")
    assert "7.5 ± 32" in text[2]  # steps 10 and 5
    assert "; -5 ± inf" not in text[2]
    assert text[3].startswith("| echo | 2 | 1 ± 0; +0 ± 0 |")
    short = [row("rl", 0, high), row("echo", 0, [0.0] * 10)]
    assert "0 of 1 reach it" in table(short).splitlines()[3]


def test_a_run_that_ended_early_is_counted_and_in_no_mean() -> None:
    rows = [row("rl", 0, [1.0] * 10), row("env-only", 0, [1.0] * 10), row("env-only", 1, [0.0] * 6)]
    assert table(rows).splitlines()[3].startswith("| env-only | 1 whole, 1 ended after step 6 | 1 ± inf; ")
    assert table([rows[0], rows[2]]).splitlines()[3] == "| env-only | 0 whole, 1 ended after step 6 |  |  |  |  |  |"


def test_every_variant_changes_the_quickstart_by_its_terms_alone() -> None:
    assert variants()["rl"] == ("rl-only", [])
    assert variants()["env-only"] == ("echo", ["algorithm.rlWeight=0"])
    assert [name for name in variants() if name.startswith("echo-")] == [
        *("echo-0.001", "echo-0.0035", "echo-0.01", "echo-0.03", "echo-0.1", "echo-0.2")
    ]
