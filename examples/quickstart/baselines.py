"""What a predictor of the environment's tokens can be held against: unigram statistics, and the true entropy."""

import math
from collections import Counter
from collections.abc import Sequence

from echorl_orchestrator.environments.builtin.parts.terminal_entropy import observation_entropy_nats
from echorl_orchestrator.environments.builtin.parts.terminal_policy import Demonstration, DemonstrationTokens
from echorl_orchestrator.environments.builtin.parts.terminal_tasks import TerminalArgs


def observation_tokens(demonstration: DemonstrationTokens) -> list[int]:
    """Body tokens of the environment's answers."""
    return [token for token, observed in zip(demonstration.ids, demonstration.observation, strict=True) if observed]


def unigram_nats(
    fitted: Sequence[DemonstrationTokens], held_out: Sequence[DemonstrationTokens], vocabulary: int
) -> float:
    """NLL per held-out observation token under token frequencies of ``fitted`` (add-one smoothed)."""
    counts = Counter(token for one in fitted for token in observation_tokens(one))
    total = sum(counts.values()) + vocabulary
    held = [token for one in held_out for token in observation_tokens(one)]
    return -sum(math.log((counts[token] + 1) / total) for token in held) / len(held)


def entropy_floor_nats(
    demonstrations: Sequence[Demonstration], tokens: Sequence[DemonstrationTokens], args: TerminalArgs
) -> float:
    """Surprisal per observation token of a predictor that knows how trees are made; none does better on average."""
    nats = sum(sum(observation_entropy_nats(one.messages, args)) for one in demonstrations)
    return nats / sum(len(observation_tokens(one)) for one in tokens)
