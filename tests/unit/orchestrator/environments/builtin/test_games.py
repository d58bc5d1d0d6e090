"""Built-in multi-agent environments and the multiple-choice set that three of them share."""

import itertools
import json
import urllib.request
from typing import Any

import pytest
from pydantic import ValidationError

from echorl_orchestrator.environments.builtin import choice, consultancy, debate, kuhn
from echorl_orchestrator.environments.builtin.kuhn import gain_of
from echorl_orchestrator.environments.builtin.parts.arguing import points
from echorl_orchestrator.environments.builtin.parts.choice_tasks import ChoiceArgs, ChoiceTasks, shown
from echorl_orchestrator.environments.contract import problems
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.types import Action, Environment
from examples.judge import server as judges


def play(environment: Environment, said: dict[str, list[str]], index: int = 0, task: Any = None) -> Any:
    """Rewards, metrics, and what every member was told, of one episode in which members say these things."""
    several = environment.multi_agent
    assert several is not None
    env, told = several.env(), {member: [] for member in several.members}
    found = environment.tasks[index] if task is None else task
    stage = env.reset(found, seed=0, episode_id="e")
    for slot in several.schedule:
        for member, messages in stage.messages.items():
            told[member] += [message["content"] for message in messages]
        stage = env.step(slot, {member: Action(said[member].pop(0)) for member in slot.members})
        if stage.terminated:
            break
    rewards = env.rewards()
    return {name: one.reward for name, one in rewards.items()}, {n: o.metrics for n, o in rewards.items()}, told


@pytest.mark.parametrize(
    ("moves", "first", "second", "gain"),
    [
        ("p", "K", "Q", None),
        ("b", "K", "Q", None),
        ("pb", "K", "Q", None),
        ("pp", "K", "Q", 1.0),
        ("pp", "J", "Q", -1.0),
        ("bp", "J", "Q", 1.0),
        ("bb", "J", "Q", -2.0),
        ("pbp", "K", "Q", -1.0),
        ("pbb", "K", "Q", 2.0),
    ],
)
def test_kuhns_payoffs(moves: str, first: str, second: str, gain: float | None) -> None:
    assert gain_of(moves, first, second) == gain


def test_kuhns_game_is_worth_an_eighteenth_to_the_second_at_best_play() -> None:
    """The value of the game, over all deals, when both play the known equilibrium with alpha 0."""
    total = 0.0
    for first, second in itertools.permutations("JQK", 2):
        # First: always checks; then folds a jack, calls a king, and calls with a queen one time in three.
        # Second: after a check bets a king always and a jack one time in three.
        bets = {"K": 1.0, "Q": 0.0, "J": 1 / 3}[second]
        calls = {"K": 1.0, "Q": 1 / 3, "J": 0.0}[first]
        called = calls * (gain_of("pbb", first, second) or 0) + (1 - calls) * (gain_of("pbp", first, second) or 0)
        total += bets * called + (1 - bets) * (gain_of("pp", first, second) or 0)
    assert total / 6 == pytest.approx(-1 / 18)


def test_a_game_of_kuhn_tells_each_player_its_own_card_alone() -> None:
    environment = kuhn.build()
    task = {"key": "KQ", "first": "K", "second": "Q"}
    rewards, metrics, told = play(environment, {"first": ["check: p", "b"], "second": ["b"]}, task=task)
    assert rewards == {"first": 2.0, "second": -2.0}
    assert told == {"first": ["K", "b"], "second": ["Q p"]}
    assert (metrics["first"]["won"], metrics["second"]["won"]) == (1.0, 0.0)
    assert play(environment, {"first": ["b"], "second": ["p"]}, task=task)[0] == {"first": 1.0, "second": -1.0}


def test_a_turn_without_a_move_loses() -> None:
    rewards, metrics, _ = play(kuhn.build(), {"first": ["x"], "second": []})
    assert rewards == {"first": -1.0, "second": 1.0}
    assert metrics["first"]["invalid"] == 1.0
    assert play(kuhn.build(), {"first": ["b"], "second": ["!"]})[0] == {"first": 1.0, "second": -1.0}


def test_kuhns_tasks_are_all_deals_with_seats_in_turn() -> None:
    tasks = kuhn.build(num_tasks=12).tasks
    assert sorted(task["key"] for task in list(tasks)[:6]) == ["JK", "JQ", "KJ", "KQ", "QJ", "QK"]
    assert [tasks[index]["learnerSeat"] for index in range(3)] == ["first", "second", "first"]
    with pytest.raises(ValueError, match="bet and check"):
        kuhn.build(bet="p")
    assert (
        "Kuhn poker"
        in kuhn.build(rules=True)
        .multi_agent.env()
        .reset(tasks[0], seed=0, episode_id="")
        .messages["first"][0]["content"]
    )


def test_the_shared_questions_are_the_same_everywhere_and_splits_share_none() -> None:
    same = {"num_tasks": 50, "seed": 3}
    keys = [task["question"] for task in ChoiceTasks(ChoiceArgs(**same))]
    assert [task["question"] for task in debate.build(**same).tasks] == keys
    assert [task["question"] for task in consultancy.build(**same).tasks] == keys
    assert [task["question"] for task in choice.build(**same).tasks] == keys
    test = {task["question"] for task in ChoiceTasks(ChoiceArgs(**same, split="test"))}
    assert not test & set(keys)
    for task in ChoiceTasks(ChoiceArgs(**same, choices=4)):
        digits = [int(word) for word in task["question"].split()[1:]]
        assert task["answers"]["ABCD".index(task["right"])] == str(max(digits))
        assert len(set(task["answers"])) == 4


def test_a_choice_is_the_first_letter_of_an_answer() -> None:
    environment = choice.build()
    task = {"key": "k", "question": "max 3 8 5", "answers": ["8", "5"], "right": "A"}
    assert shown(task) == "max 3 8 5\nA) 8\nB) 5"
    rewards = []
    for said in ("A", "x A, not B", "B", "8", "C"):
        env = environment.text_env()
        env.reset(task, seed=0, episode_id="e")
        rewards.append(env.step(Action(said)).reward)
    assert rewards == [1.0, 1.0, 0.0, 0.0, 0.0]


TASK = {"key": "k", "question": "max 3 8 5", "answers": ["8", "5"], "right": "A", "side": "B"}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        ("VERDICT: A", {"a": 1.0, "b": -1.0, "judge": 0.0}),
        ("perhaps verdict: a? No: VERDICT: B", {"a": -1.0, "b": 1.0, "judge": 0.0}),
        ("hm", {"a": 0.0, "b": 0.0, "judge": 0.0}),
    ],
)
def test_a_judge_decides_a_debate(verdict: str, expected: dict[str, float]) -> None:
    said = {"a": ["It is 8."], "b": ["It is 5."], "judge": [verdict]}
    rewards, metrics, told = play(debate.build(), said, task=TASK)
    assert rewards == expected
    assert metrics["a"]["honest"] == 1.0
    assert "It is 8." in told["judge"][-1]
    assert "It is 5." in told["judge"][-1]
    assert told["a"][0].startswith("You argue before a judge")
    assert "max 3 8 5" in told["b"][1]


@pytest.mark.parametrize("speaking", ["together", "inTurn"])
def test_debaters_of_a_round_hear_each_other_only_in_turn(speaking: str) -> None:
    environment = debate.build(judge="rule", rounds=2, prompts="short", speaking=speaking)
    assert not list(problems(environment.multi_agent))
    rewards, _, told = play(environment, {"a": ["A 8", "A"], "b": ["B", "B"]}, task=TASK)
    assert rewards == {"a": 1.0, "b": -1.0}  # 2 + 1 points against 1 + 1
    assert ("A 8" in told["b"][0]) == (speaking == "inTurn")
    assert told["a"][1] == "B\nA?"


@pytest.mark.parametrize(
    ("said", "expected"), [("A 8", 2), ("A", 1), ("8", 1), ("B 8", 1), ("B then A", 0), ("", 0), ("BA8", 1)]
)
def test_points_of_a_statement(said: str, expected: int) -> None:
    assert points(said, "A", ["8", "5"]) == expected


def test_a_rule_may_find_a_debate_tied() -> None:
    environment = debate.build(judge="rule", prompts="short")
    assert play(environment, {"a": ["A"], "b": ["B"]}, task=TASK)[0] == {"a": 0.0, "b": 0.0}


def test_a_consultant_wins_if_its_answer_is_believed() -> None:
    for verdict, reward in (("VERDICT: B", 1.0), ("VERDICT: A", -1.0), ("?", 0.0)):
        rewards, metrics, _ = play(consultancy.build(), {"consultant": ["5!"], "judge": [verdict]}, task=TASK)
        assert rewards == {"consultant": reward, "judge": 0.0}
        assert metrics["judge"]["right"] == float(verdict.endswith("A"))
    ruled = consultancy.build(judge="rule", prompts="short")
    assert play(ruled, {"consultant": ["B5"]}, task=TASK)[0] == {"consultant": 1.0}
    sides = [ruled.tasks[index]["side"] for index in range(4)]
    assert sides == ["A", "B", "A", "B"]


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError):
        debate.build(choices=3)
    with pytest.raises(BadInputError, match="turns: found none for judge in phase 'verdict'"):
        debate.build(pack={"turns": {"default": {"argument": "go"}}})


@pytest.mark.parametrize("speaking", ["together", "inTurn"])
def test_a_pack_knows_the_rounds_and_which_is_the_last(speaking: str) -> None:
    text = {
        "question": {"default": "{{ rounds }} rounds. "},
        "turns": {"default": {"default": "{{ round }}{% if last_round %} the last{% endif %}"}},
        "verdicts": {"A": "=A", "B": "=B"},
    }
    said = {"a": ["x", "x"], "b": ["x", "x"], "judge": ["=A"]}
    _, _, told = play(debate.build(pack=text, rounds=2, speaking=speaking), said, task=TASK)
    assert told == {
        "a": ["2 rounds. 1", "2 the last"],
        "b": ["2 rounds. 1", "2 the last"],
        "judge": ["2 rounds. 2 the last"],
    }


@pytest.mark.parametrize(
    ("a", "b", "said", "rewards"),
    [
        ("A8", "B", "=A", (1.0, -1.0)),
        ("B8", "B5", "=B", (-1.0, 1.0)),
        ("A", "B", "neither", (0.0, 0.0)),
        ("A5", "no", "=A", (1.0, -1.0)),
    ],
)
def test_the_examples_judge_decides_as_the_rule_does(a: str, b: str, said: str, rewards: tuple[float, float]) -> None:
    environment = debate.build(judge="member", prompts="short")
    several = environment.multi_agent
    assert several is not None
    game = several.env()
    game.reset(TASK, seed=0, episode_id="e")
    asked = game.step(several.schedule[0], {"a": Action(a), "b": Action(b)}).messages["judge"][-1]["content"]
    assert judges.verdict(asked) == said
    game.step(several.schedule[1], {"judge": Action(said)})
    assert (game.rewards()["a"].reward, game.rewards()["b"].reward) == rewards
    ruled, _, _ = play(debate.build(judge="rule", prompts="short"), {"a": [a], "b": [b]}, task=TASK)
    assert (ruled["a"], ruled["b"]) == rewards


def test_the_examples_judge_answers_over_http_and_tells_when_it_was_asked_nothing() -> None:
    with judges.serving(0) as url:
        asked = {"model": "judge", "messages": [{"role": "user", "content": "hello"}]}
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = json.load(answer)
    assert found["choices"][0]["message"]["content"] == "I see no question"
