"""What is taken over of an environment's scores."""

import math

import pytest

from echorl_orchestrator.episodes.episode_loop import Progress
from echorl_orchestrator.failures import EpisodeError, ErrorKind


@pytest.mark.parametrize("reward", [math.nan, math.inf, -1e39])
def test_a_reward_that_a_float32_does_not_hold_fails_the_episode(reward: float) -> None:
    progress = Progress()
    with pytest.raises(EpisodeError, match=r"reward: found .*, accepted is a finite number") as caught:
        progress.score(reward, {}, {})
    assert caught.value.kind is ErrorKind.ENV
    assert progress.reward is None
