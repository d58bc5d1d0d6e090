from echorl_core.config import LengthShapingConfig
from echorl_orchestrator.advantages.length_cost import cost_of, environment_tokens
from echorl_testing.orchestrator.scripted_player import A, C, E, W, outcome, sample


def test_environment_tokens_of_branches_are_counted_once() -> None:
    """The second branch shares five tokens, of which two are the environment's; then it goes on its own way."""
    first = sample([C, A, E, E, A, E], tokens=[1, 2, 3, 4, 5, 6])
    second = sample([C, A, E, E, A, W, E], tokens=[1, 2, 3, 4, 5, 9, 9])
    assert environment_tokens([first]) == 3
    assert environment_tokens([first, second]) == 5
    assert environment_tokens([first, first]) == 3
    assert environment_tokens([]) == 0


def test_a_longer_branch_counts_what_the_shorter_one_lacks() -> None:
    short, long = sample([C, A, E], tokens=[1, 2, 3]), sample([C, A, E, A, E], tokens=[1, 2, 3, 4, 5])
    assert environment_tokens([short, long]) == environment_tokens([long, short]) == 2


def test_costs_by_hand() -> None:
    episode = outcome(samples=[sample([C, A, A, E, E, E])])
    episode.sampled_tokens, episode.num_turns = 10, 4
    assert cost_of(episode, LengthShapingConfig(by="turns")) == 4
    assert cost_of(episode, LengthShapingConfig(by="tokens")) == 13
    weighed = LengthShapingConfig(by="tokens", completion_weight=0.5, environment_weight=2.0)
    assert cost_of(episode, weighed) == 11
