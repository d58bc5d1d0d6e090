from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.arrays import unpack
from echorl_core.checkpoints import NO_HISTORY, next_history
from echorl_core.config import BatchConfig, FilterConfig
from echorl_core.identity import RunIdentity
from echorl_core.wire.batch import RankBatch, Sample, TokenRole
from echorl_orchestrator.batches.batch_metrics import SinceLastBatch, batch_columns
from echorl_orchestrator.batches.sealing import Place, SavedState, compose, extend, files, read_state, seal_of
from echorl_orchestrator.filters.rules import Verdict
from echorl_orchestrator.rollout.groups import ReadyEpisode
from echorl_orchestrator.tasks.task_deck import DeckState, Ticket
from echorl_testing.orchestrator.scripted_player import A, C, E, W, batch_config, outcome, sample

ECHO = frozenset({"terminal"})
RL_FILTER = FilterConfig(type="zeroAdvantage", scope="rl")


def episode(samples: list[Sample], advantage: float = 1.0, reward: float = 1.0, group: str = "g") -> ReadyEpisode:
    name = samples[0].episode if samples else "none"
    return ReadyEpisode(
        outcome=outcome(name, reward=reward, samples=samples),
        group=group,
        ticket=Ticket("terminal", 0, 0, 0),
        advantage=advantage,
        verdict=Verdict(),
        version_low=0,
        partial=False,
    )


def weights(config: BatchConfig, *episodes: ReadyEpisode, step: int = 1) -> tuple[dict[str, float], dict[str, Sample]]:
    """Denominators, and weights by sample id as they arrive at the one rank."""
    content = compose(list(episodes), config, ECHO, step=step)
    assert content is not None
    found: dict[str, object] = {}
    for one in content.ranks[0]:
        ends = np.cumsum(one.lengths)
        for name, start, end in zip(one.sample_ids, ends - one.lengths, ends, strict=True):
            found[name] = (one.rl_weight[start:end], one.ce_weight[start:end], one.advantage[start:end])
    return content.denominators, found  # type: ignore[return-value]


def test_tokens_and_advantages_by_hand() -> None:
    denominators, found = weights(
        batch_config(), episode([sample([C, A, A, E], episode="a")], 0.5), episode([sample([C, A], episode="b")], -0.5)
    )
    assert denominators == {"rl": 3.0, "ce": 1.0}
    rl, ce, advantage = found["a/0"]
    assert rl.tolist() == [0, 1, 1, 0]
    assert ce.tolist() == pytest.approx([0, 0, 0, 0.05])
    assert advantage.tolist() == [0, 0.5, 0.5, 0]


@pytest.mark.parametrize(("step", "alpha"), [(1, 0.0125), (2, 0.025), (4, 0.05), (9, 0.05)])
def test_alpha_rises_over_the_warmup_and_its_denominator_does_not(step: int, alpha: float) -> None:
    denominators, found = weights(
        batch_config(echo_warmup_steps=4), episode([sample([C, A, A, E], episode="a")]), step=step
    )
    assert denominators == {"rl": 2.0, "ce": 1.0}
    rl, ce, _ = found["a/0"]
    assert rl.tolist() == [0, 1, 1, 0]
    assert ce.tolist() == pytest.approx([0, 0, 0, alpha])


def test_aggregation_by_episode_divides_by_all_its_branches() -> None:
    two = episode([sample([C, A, A, A], episode="a"), sample([C, A], episode="a", branch=1)])
    one = episode([sample([C, A, A], episode="b")])
    nothing = episode([sample([C, E], episode="c")])
    denominators, found = weights(batch_config(aggregation="episode"), two, one, nothing)
    assert denominators == {"rl": 2.0, "ce": 1.0}
    assert found["a/0"][0].tolist() == pytest.approx([0, 0.25, 0.25, 0.25])
    assert found["a/1"][0].tolist() == pytest.approx([0, 0.25])
    assert found["b/0"][0].tolist() == pytest.approx([0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("aggregation", "rl", "first", "second", "alone"),
    [("token", 4.0, 0.5, 0.5, 1.0), ("episode", 2.0, 1 / 6, 1 / 2, 1 / 2)],
)
def test_a_split_reward_is_shared_by_the_branches_that_train(
    aggregation: Literal["token", "episode"], rl: float, first: float, second: float, alone: float
) -> None:
    branches = [[C, A, A, A], [C, A], [C, E, C]]  # nothing of the third trains by reward
    two = episode([sample(roles, episode="a", branch=number) for number, roles in enumerate(branches)], 0.5)
    one = episode([sample([C, A, A], episode="b")], -0.5)
    config = batch_config(aggregation=aggregation, reward_per_branch="split")
    denominators, found = weights(config, two, one)
    assert denominators == {"rl": rl, "ce": 1.0}
    assert found["a/0"][0].tolist() == pytest.approx([0, first, first, first])
    assert found["a/1"][0].tolist() == pytest.approx([0, second])
    assert found["a/2"][1].tolist() == pytest.approx([0, 0.05, 0])
    assert found["b/0"][0].tolist() == pytest.approx([0, alone, alone])
    assert {float(value) for value in found["a/0"][2][1:]} == {0.5}  # the advantage itself stays


@pytest.mark.parametrize("aggregation", ["token", "episode"])
@given(
    roles=st.lists(st.sampled_from([C, A, E]), max_size=8).map(lambda roles: [C, A, *roles]),
    copies=st.integers(2, 8),
    advantage=st.floats(-10, 10, width=32),
    rl_weight=st.sampled_from([1.0, 0.3]),
)
def test_branches_of_a_split_reward_weigh_as_one_alone(
    aggregation: Literal["token", "episode"], roles: list[TokenRole], copies: int, advantage: float, rl_weight: float
) -> None:
    config = batch_config(aggregation=aggregation, reward_per_branch="split", rl_weight=rl_weight)
    single = episode([sample(roles, episode="a")], advantage)
    several = episode([sample(roles, episode="a", branch=number) for number in range(copies)], advantage)
    one, many = weights(config, single), weights(config, several)
    assert many[0]["rl"] == pytest.approx(one[0]["rl"])
    summed = [np.sum([rl * given for rl, _, given in found.values()], axis=0) for _, found in (one, many)]
    assert summed[1] == pytest.approx(summed[0], rel=1e-5, abs=1e-6)
    # A single branch trains as it does without the setting, to the bit.
    full = weights(batch_config(aggregation=aggregation, rl_weight=rl_weight), single)
    assert (full[0], full[1]["a/0"][0].tolist()) == (one[0], one[1]["a/0"][0].tolist())


@pytest.mark.parametrize("aggregation", ["token", "episode"])
@given(
    episodes=st.lists(
        st.lists(st.lists(st.sampled_from([C, A]), min_size=2, max_size=6), min_size=1, max_size=5), max_size=4
    )
)
def test_every_episode_counts_once_by_its_mean_branch(
    aggregation: Literal["token", "episode"], episodes: list[list[list[TokenRole]]]
) -> None:
    found = [
        episode([sample([C, A, *roles], episode=f"e{place}", branch=number) for number, roles in enumerate(branches)])
        for place, branches in enumerate([*episodes, [[C]]])
    ]
    config = batch_config(aggregation=aggregation, reward_per_branch="split", seq_len=4096)
    denominators, samples = weights(config, *found)
    # The weights of a batch sum to its denominator, whatever is a branch of what.
    assert sum(float(rl.sum()) for rl, _, _ in samples.values()) == pytest.approx(denominators["rl"], rel=1e-5)


def test_per_sequence_echo_divides_by_every_observation() -> None:
    kept = sample([C, A, E, E, W], episode="a")  # the warning is observed, but has no weight
    filtered = sample([C, A, E, E], episode="b", alpha=0.0)
    none = sample([C, A, A], episode="c")
    config = batch_config(echo_normalizer="perSequence")
    denominators, found = weights(config, *[episode([one]) for one in (kept, filtered, none)])
    assert denominators["ce"] == 2.0  # sequences with observations, whatever was filtered
    assert found["a/0"][1].tolist() == pytest.approx([0, 0, 0.05 / 3, 0.05 / 3, 0])
    other = sample([C, A, E], episode="d", environment="digits", alpha=0.0)
    assert weights(config, episode([kept]), episode([other]))[0]["ce"] == 1.0  # digits has no ECHO block


def test_tokens_of_alpha_0_count_for_the_denominator() -> None:
    plain = sample([C, E, A, E, E], episode="a")
    # As of ``{tool: {alpha: 0.05}, user: {alpha: 0}}``: the first observation is the user's.
    mixed = msgspec.structs.replace(
        plain,
        ce_weight=np.array([0, 0, 0, 0.05, 0.05], np.float32),
        ce_mask=np.array([0, 1, 0, 1, 1], np.bool_),
    )
    silent = msgspec.structs.replace(
        sample([C, E], episode="b", alpha=0.0), ce_mask=np.array([False, True])
    )  # nothing of it trains: it is in the denominator and not in the batch
    denominators, found = weights(batch_config(), episode([mixed]), episode([silent]))
    assert denominators == {"rl": 1.0, "ce": 4.0}
    assert set(found) == {"a/0"}
    assert found["a/0"][1].tolist() == pytest.approx([0, 0, 0, 0.05, 0.05])
    per_sequence = weights(batch_config(echo_normalizer="perSequence"), episode([mixed]), episode([silent]))
    assert per_sequence[0]["ce"] == 2.0
    assert per_sequence[1]["a/0"][1].tolist() == pytest.approx([0, 0, 0, 0.05 / 3, 0.05 / 3])
    filtered = episode([silent])
    filtered.verdict = Verdict(rl=False, ce=False)
    assert weights(batch_config(), episode([mixed]), filtered)[0]["ce"] == 3.0
    assert compose([episode([silent])], batch_config(), ECHO, step=1) is None


def test_a_component_without_weights_is_skipped() -> None:
    assert weights(batch_config(), episode([sample([C, A])]))[0] == {"rl": 1.0, "ce": 0.0}
    assert weights(batch_config(rl_weight=0.0), episode([sample([C, A, E])]))[0] == {"rl": 0.0, "ce": 1.0}
    assert weights(batch_config(rl_weight=0.5), episode([sample([C, A, E])]))[1]["e/0"][0].tolist() == [0, 0.5, 0]


def test_filters_leave_echo_on_unless_they_stop_all() -> None:
    idle = episode([sample([C, A, E], episode="a")], advantage=0.0)
    live = episode([sample([C, A, E], episode="b")])
    denominators, found = weights(batch_config(filters=[RL_FILTER]), idle, live)
    assert denominators == {"rl": 1.0, "ce": 2.0}
    assert not found["a/0"][0].any()
    assert found["a/0"][1].any()
    everything = FilterConfig(type="zeroAdvantage", scope="all")
    idle = episode([sample([C, A, E], episode="a")], advantage=0.0)
    denominators, found = weights(batch_config(filters=[everything]), idle, live)
    assert denominators == {"rl": 1.0, "ce": 1.0}
    assert set(found) == {"b/0"}


def test_nothing_to_train_is_no_batch() -> None:
    idle = episode([sample([C, A])], advantage=0.0)
    assert compose([idle], batch_config(filters=[RL_FILTER]), ECHO, step=1) is None
    assert compose([episode([])], batch_config(), ECHO, step=1) is None


def test_the_digest_depends_on_what_trains_and_not_on_names() -> None:
    def digest(**fields: object) -> str:
        content = compose([episode([sample([C, A, E], **fields)])], batch_config(), ECHO, step=1)
        assert content is not None
        return content.digest

    assert digest(episode="a1-g1-e0") == digest(episode="a2-g1-e0")
    assert digest() != digest(alpha=0.06)
    assert digest() != digest(version=1)
    assert digest() != digest(tokens=[5, 6, 7])


def test_files_hold_one_batch_per_rank_and_the_state() -> None:
    config = batch_config(num_ranks=2)
    episodes = [episode([sample([C, A, E], episode=name)]) for name in "abc"]
    content = compose(episodes, config, ECHO, step=1)
    assert content is not None
    place = Place(RunIdentity("run", "uid", 3), step=7, checkpoint=True, last=False)
    state = SavedState(
        run_uid="uid", attempt=3, step=7, deck=DeckState(draws=1, cursors={}), groups=4, history=NO_HISTORY, totals={}
    )
    extended = extend(state, content)
    assert extended.history == next_history(NO_HISTORY, content.digest)
    seal = seal_of(place, content, dict(batch_columns(episodes, content, 7, SinceLastBatch({"failures/env": 2}))))
    assert seal.counts["failures/env"] == 2
    assert seal.counts["reward/all/mean"] == seal.counts["reward/terminal/mean"] == 1.0
    assert seal.counts["staleness/all/max"] == 6
    written = files(place, content, seal, extended)
    assert sorted(written) == ["orchestrator.bin", "rank_0.bin", "rank_1.bin", "seal.json"]
    assert read_state(written["orchestrator.bin"]) == extended
    ranks = [unpack(written[f"rank_{rank}.bin"], RankBatch) for rank in range(2)]
    assert [(one.run_uid, one.attempt, one.step, one.rank, one.num_ranks) for one in ranks] == [
        ("uid", 3, 7, 0, 2),
        ("uid", 3, 7, 1, 2),
    ]
    assert all(one.checkpoint and not one.last and one.denominators == {"rl": 3.0, "ce": 3.0} for one in ranks)
    names = [name for one in ranks for micro in one.micro_batches for name in micro.sample_ids]
    assert sorted(names) == seal.sample_ids == ["a/0", "b/0", "c/0"]
    assert len(ranks[0].micro_batches) == len(ranks[1].micro_batches)


def test_ranks_that_share_packs_are_one_in_the_layout() -> None:
    episodes = [episode([sample([C, A, E], episode=name)]) for name in "abc"]
    shared, two = (
        compose(episodes, batch_config(num_ranks=count, context=size), ECHO, step=1) for count, size in ((4, 2), (2, 1))
    )
    assert shared is not None
    assert two is not None
    assert len(shared.ranks) == 2
    assert shared.digest == two.digest


def test_trained_tokens_and_shares_of_filters_by_hand() -> None:
    rules = [RL_FILTER, FilterConfig(type="gibberish", enforce=False)]
    idle = episode([sample([C, A, A, E], episode="a")], advantage=0.0, reward=0.0)
    odd = episode([sample([C, A, A, E], episode="b")])
    odd.matched = frozenset({1})
    before = episode([], advantage=0.0, reward=1.0)
    before.verdict = Verdict(("zeroAdvantage",), rl=False, ce=False)
    before.outcome.environment = "digits"
    content = compose([idle, odd], batch_config(filters=rules), ECHO, step=1)
    assert content is not None
    assert content.trained_tokens == 4  # the idle one's ECHO token alone, all three of the other
    since = SinceLastBatch(filtered=[before], filters=["zeroAdvantage", "gibberish", "repetition"])
    facts = batch_columns([idle, odd], content, 1, since)
    assert {name: value for name, value in facts.items() if name.startswith("filters/")} == {
        "filters/all/zeroAdvantage": 2 / 3,
        "filters/all/gibberish": 1 / 3,
        "filters/all/repetition": 0,
        "filters/all/is_filtered": 2 / 3,
        "filters/terminal/zeroAdvantage": 0.5,
        "filters/terminal/gibberish": 0.5,
        "filters/terminal/repetition": 0,
        "filters/terminal/is_filtered": 0.5,
        "filters/digits/zeroAdvantage": 1,
        "filters/digits/gibberish": 0,
        "filters/digits/repetition": 0,
        "filters/digits/is_filtered": 1,
    }
    assert (facts["batch/episodes"], facts["batch/filtered_before"], facts["tokens/trained"]) == (2, 1, 4)
    assert facts["reward/all/mean"] == pytest.approx(2 / 3)
    assert facts["reward/digits/mean"] == 1.0


def of(name: str, one: ReadyEpisode, config: BatchConfig) -> ReadyEpisode:
    """The episode as one of an environment with an algorithm of its own."""
    one.outcome.environment, one.own = name, config
    return one


def test_an_environment_has_weight_and_filters_of_its_own() -> None:
    config = batch_config(filters=[RL_FILTER])
    own = config.model_copy(update={"rl_weight": 0.25, "filters": []})
    denominators, found = weights(
        config,
        episode([sample([C, A, A], episode="a")], 0.0),
        of("maze", episode([sample([C, A, A, A], episode="b")], 0.0), own),
    )
    assert denominators == {"rl": 3.0, "ce": 0.0}
    assert list(found) == ["b/0"]
    assert found["b/0"][0].tolist() == [0, 0.25, 0.25, 0.25]


def test_an_environment_without_a_policy_gradient_counts_for_no_denominator_of_it() -> None:
    config = batch_config()
    own = config.model_copy(update={"rl_weight": 0.0})
    denominators, found = weights(
        config,
        episode([sample([C, A, A], episode="a")]),
        of("maze", episode([sample([C, A, A, E], episode="b")]), own),
    )
    assert denominators == {"rl": 2.0, "ce": 1.0}
    assert found["b/0"][0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("config", "advantages", "share"),
    [
        # Of two episodes the first learns from its reward; the second's advantage is 0, filtered or not.
        (batch_config(), [0.5, 0.0], 0.5),
        (batch_config(filters=[RL_FILTER]), [0.5, 0.0], 0.5),
        (batch_config(), [0.0, 0.0], 0.0),
        (batch_config(filters=[RL_FILTER]), [0.0, 0.0], 0.0),
        (batch_config(rl_weight=0.0), [0.5, 0.5], None),
    ],
)
def test_the_share_of_episodes_that_rewards_teach_by_hand(
    config: BatchConfig, advantages: list[float], share: float | None
) -> None:
    """ECHO trains in all of them, so that every one of these is a batch."""
    found = [episode([sample([C, A, E], episode=f"e{place}")], advantage) for place, advantage in enumerate(advantages)]
    content = compose(found, config, ECHO, step=1)
    assert content is not None
    assert (content.denominators["ce"], content.trainable_episodes, content.rl_share) == (2.0, 2, share)
    assert batch_columns(found, content, 1, SinceLastBatch())["batch/rl_share"] == share


def test_what_a_teacher_judged_teaches_though_it_has_no_advantage() -> None:
    judged = msgspec.structs.replace(sample([C, A]), ref_logprobs=np.zeros(2, np.float32))
    content = compose([episode([judged], 0.0)], batch_config(mode="opd"), ECHO, step=1)
    assert content is not None
    assert content.rl_share == 1.0


def test_an_environment_without_a_policy_gradient_is_not_asked_what_its_rewards_teach() -> None:
    asked, other = (episode([sample([C, A, E], episode=name)], 0.5) for name in "ab")
    content = compose([asked, of("terminal", other, batch_config(rl_weight=0.0))], batch_config(), ECHO, step=1)
    assert content is not None
    assert content.rl_share == 1.0


def test_a_batch_tells_rewards_and_what_echo_counts() -> None:
    """A token of alpha 0 is counted and has no weight; where all that count have one, they are not told twice."""
    light = msgspec.structs.replace(sample([C, A, E], episode="a", alpha=0.0), ce_mask=np.array([False, False, True]))
    content = compose([episode([light], reward=0.25)], batch_config(), ECHO, step=1)
    assert content is not None
    ((micro,),) = content.ranks
    assert (micro.sample_ids, micro.rewards) == (["a/0"], [0.25])
    assert micro.ce_mask is not None
    assert micro.ce_mask.tolist() == [False, False, True]
    content = compose([episode([sample([C, A, E], episode="c")])], batch_config(), ECHO, step=1)
    assert content is not None
    assert content.ranks[0][0].ce_mask is None
