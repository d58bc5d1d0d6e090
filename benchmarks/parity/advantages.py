"""Our advantages as the trainer gets them, in float32, against exact fractions and prime-rl's formulas in float64."""

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from benchmarks.parity.rows import Row, relative
from echorl_core.config import AdvantageConfig, LengthShapingConfig
from echorl_orchestrator.advantages.estimators import advantages
from echorl_orchestrator.advantages.rae import Baselines, Order, Per

GROUPS = 200


def groups(seed: int) -> Iterator[tuple[list[float], list[float]]]:
    """Rewards and costs of groups of 1 to 16: graded rewards, successes and failures alone, or all the same."""
    generator = np.random.default_rng(seed)
    for number in range(GROUPS):
        size = int(generator.integers(1, 17))
        graded = generator.random(size)
        binary = (generator.random(size) < 0.4).astype(float)
        rewards = (graded, binary, np.full(size, graded[0]))[number % 3]
        yield rewards.tolist(), generator.integers(1, 2000, size).astype(float).tolist()


def _exact_mean(rewards: Sequence[float]) -> Fraction:
    return sum(map(Fraction, rewards), Fraction(0)) / len(rewards)


def exact_group_mean(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Without any rounding before the last."""
    return [float(Fraction(reward) - _exact_mean(rewards)) for reward in rewards]


def exact_max_rl(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """The same over the mean."""
    mean = _exact_mean(rewards)
    return [float((Fraction(reward) - mean) / mean) if mean else 0.0 for reward in rewards]


def exact_shaped(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """Length shaping by its definition."""
    best = max(rewards)
    of_best = [Fraction(cost) for reward, cost in zip(rewards, costs, strict=True) if reward == best]
    mean = sum(of_best, Fraction(0)) / len(of_best)
    bonus = [
        min(max(1 - Fraction(cost) / mean, Fraction(0)), Fraction(1)) if reward == best > 0 else Fraction(0)
        for reward, cost in zip(rewards, costs, strict=True)
    ]
    shaped = [Fraction(reward) * (1 + more) for reward, more in zip(rewards, bonus, strict=True)]
    middle = sum(shaped, Fraction(0)) / len(shaped)
    return [float(one - middle) for one in shaped]


def prime_group_mean(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """prime-rl's default."""
    values = torch.tensor(rewards, dtype=torch.float64)
    found: list[float] = (values - values.mean()).tolist()
    return found


def prime_shaped(rewards: Sequence[float], costs: Sequence[float]) -> list[float]:
    """prime-rl's length shaping: a bonus where the reward is the group's highest."""
    values, spent = (torch.tensor(column, dtype=torch.float64) for column in (rewards, costs))
    correct = values == values.max()
    if values.max() <= 0 or spent[correct].mean() <= 0:
        return prime_group_mean(rewards, costs)
    bonus = (1 - spent / spent[correct].mean()).clamp(0, 1) * correct
    return prime_group_mean((values * (1 + bonus)).tolist(), costs)


_SHAPED = AdvantageConfig(length_shaping=LengthShapingConfig(by="tokens"))
_CASES: list[tuple[str, str, AdvantageConfig, Callable[[Sequence[float], Sequence[float]], list[float]]]] = [
    ("groupMean", "fractions", AdvantageConfig(), exact_group_mean),
    ("groupMean", "prime-rl", AdvantageConfig(), prime_group_mean),
    ("groupMean, length shaping", "fractions", _SHAPED, exact_shaped),
    ("groupMean, length shaping", "prime-rl", _SHAPED, prime_shaped),
    ("maxRl", "fractions", AdvantageConfig(type="maxRl"), exact_max_rl),
    ("none", "the rewards", AdvantageConfig(type="none"), lambda rewards, costs: list(rewards)),
]


def of_groups(seed: int) -> Iterator[Row]:
    """Every kind that looks at one group."""
    for what, against, config, formula in _CASES:
        errors = []
        for rewards, costs in groups(seed):
            found = _shipped(advantages(rewards, config, costs))
            # Equal rewards differ from their mean by rounding alone, which counts as 0 here and not in the peer.
            errors.append(relative(found, _column(formula(rewards, costs)), 1e-9))
        yield Row(what, against, max(errors))


def rae(seed: int) -> Iterator[Row]:
    """Both orders and both kinds of baselines over a thousand games on 20 tasks with two seats."""
    generator = np.random.default_rng(seed)
    seats, outcomes = generator.choice(["white", "black"], 1000), generator.choice([-1.0, 0.0, 1.0], 1000)
    games = list(zip(generator.integers(20, size=1000).tolist(), seats.tolist(), outcomes.tolist(), strict=True))
    kinds: list[tuple[Per, Order, float, str]] = [
        ("task", "updateThenSubtract", 0.9, "SPIRAL algorithm 1; prime-rl's ema_per_member"),
        ("member", "subtractThenUpdate", 0.95, "prime-rl's rae"),
    ]
    for per, order, momentum, source in kinds:
        baselines = Baselines(per=per, momentum=momentum, order=order)
        # Who counts by seat alone counts games of one task.
        peers = games if per == "task" else [(0, seat, reward) for _, seat, reward in games]
        wanted = _peers_rae(peers, Fraction(momentum), update_first=order == "updateThenSubtract")
        yield Row(f"rae per {per}, {order}, {momentum}", source, relative(_rae(games, baselines), wanted, 1e-9))


def _rae(games: Sequence[tuple[int, str, float]], baselines: Baselines) -> Tensor:
    return _shipped([baselines.advantage("game", task, seat, reward) for task, seat, reward in games])


def _peers_rae(games: Sequence[tuple[int, str, float]], momentum: Fraction, *, update_first: bool) -> Tensor:
    running: dict[tuple[int, str], Fraction] = {}
    found = []
    for task, seat, reward in games:
        old = running.get((task, seat), Fraction(0))
        new = momentum * old + (1 - momentum) * Fraction(reward)
        # Fractions grow with every product; 200 bits are far more than float64 has.
        running[task, seat] = new.limit_denominator(2**200)
        found.append(float(Fraction(reward) - (new if update_first else old)))
    return _column(found)


def _shipped(values: Sequence[float]) -> Tensor:
    """As sealed batches hold them."""
    return torch.from_numpy(np.array(values, np.float32))


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
