"""Environments of the installed library verifiers, of both its generations, played by a run's own workers."""

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from echorl_core.config import EnvironmentConfig, SamplingConfig
from echorl_core.wire.batch import TokenRole
from echorl_orchestrator.codec.compact import CompactCodec
from echorl_orchestrator.codec.tokenizer import TextTokenizer
from echorl_orchestrator.episode_outcome import EpisodeOutcome, StopReason
from echorl_orchestrator.episodes.player import EpisodePlayer
from echorl_orchestrator.failures import EpisodeError, ErrorKind
from echorl_orchestrator.workers.interpreters import interpreter
from echorl_testing import hubs
from echorl_testing.hubs import of_hub
from echorl_testing.orchestrator.scripted_policy import (
    IDENTITY,
    ScriptedPolicy,
    orchestrator_config,
    write_byte_tokenizer,
)
from echorl_testing.ports import free_port

pytestmark = [of_hub("verifiers"), pytest.mark.timeout(600)]  # a busy machine imports the library for minutes

ENVIRONMENTS = Path(hubs.__file__).with_name("verifiers_environments")
SILENT = 7
"""The sum to which the policy says nothing; the tasks are 3 + 3, 0 + 2, 4 + 3, 3 + 2, 3 + 2, 4 + 1, 4 + 1, 2 + 1, and
in the eval 1 + 4, 0 + 2, 0 + 3, 3 + 3, 3 + 1, 0 + 3, 0 + 3, 3 + 4."""
ENDLESS = 3
"""The sum that it never comes to in several turns."""


def said(prompt: str) -> str:
    """Sums; a guess begins one below, and with tools the sum is what the tool says."""
    left, right = (int(number) for number in re.findall(r"(\d) \+ (\d)\?", prompt)[-1])
    if "Call add." in prompt:
        _, told, answer = prompt.rpartition("<tool_response>")
        call = f"<tool_call>add {left} {right}</tool_call>"
        text = answer.partition("</tool_response>")[0] if told and left + right != ENDLESS else call
    elif "Guess." in prompt:
        text = str(left + right - (left + right == ENDLESS or "more" not in prompt))
    else:
        text = "" if left + right == SILENT else str(left + right)
    return f"{text}<|im_end|>"


def environment(name: str, kind: str, **options: Any) -> EnvironmentConfig:
    shared = {"max_retries": 0, "sampling": SamplingConfig(max_completion_tokens=48), "state_columns": ["guesses"]}
    return EnvironmentConfig(name=name, type=f"verifiers:{kind}", **{**shared, **options})


KINDS = {
    "single": ["", "", "", "overlong"],
    "turns": ["", "sandbox", "code", "reward", "judge", "long", "", ""],
    "tools": ["", ""],
}
TURNS, TOOLS = 4, 12
"""Where tasks of the second and third kind begin."""
TASKS = ["", "reward", "", "unrewarded", "overlong", "tool", "", "tool"]
CLASSIC = environment("classic", "owner/seeded-sums@0.1", max_turns=3, args={"kinds": KINDS})
TASKSET = environment("taskset", "seeded-tasks", max_turns=2, args={"taskset": {"kinds": [*TASKS, ""]}, "num_tasks": 8})
HARNESS = environment("harness", "seeded-harness")
EVAL = environment("evals", "seeded-sums", args={"eval_fails": [*[""] * 7, "silence"]})


@dataclass
class Played:
    """What an episode came to, and what engines returned for it."""

    outcome: EpisodeOutcome
    returned: list[list[int]]

    @property
    def trained(self) -> list[int]:
        """Tokens that train, in the order of the one sample."""
        (sample,) = self.outcome.samples
        return list(sample.token_ids[sample.role == TokenRole.ACTION].tolist())


class Table:
    """Plays tasks of a run's environments, one after the other."""

    def __init__(self, player: EpisodePlayer, policy: ScriptedPolicy) -> None:
        self._player, self._policy, self._count = player, policy, 0

    async def play(self, config: EnvironmentConfig, index: int, *errors: EpisodeError) -> Played:
        self._count += 1
        before, self._policy.errors = len(self._policy.returned), list(errors)
        outcome = await self._player.play(
            config,
            await self._player.task(config, index),
            episode=f"e{self._count}",
            group="g",
            seed=7,
            attempt=1,
        )
        return Played(outcome, [generation.token_ids for _, generation in self._policy.returned[before:]])


async def all_played(folder: Path, train: list[EnvironmentConfig], evals: list[EnvironmentConfig]) -> dict[Any, Any]:
    """Every task of every environment by ``(name, index)``, and numbers of tasks by name."""
    model, port = write_byte_tokenizer(folder / "model"), free_port()
    tokenizer = TextTokenizer(model, name="bytes")
    policy = ScriptedPolicy(tokenizer, said)
    config = orchestrator_config(
        model, train, evals=evals, port=port, python_path=[str(ENVIRONMENTS)], max_model_len=1000
    )
    player = EpisodePlayer(config, IDENTITY, policy, CompactCodec(tokenizer))
    app = web.Application()
    player.routes(app)
    found: dict[Any, Any] = {}
    try:
        async with TestServer(app, port=port):
            await player.start()
            table = Table(player, policy)
            for one in (*train, *evals):
                found[one.name] = await player.num_tasks(one)
                for index in range(found[one.name]):
                    found[one.name, index] = await table.play(one, index)
            for one in train:
                lost = EpisodeError(ErrorKind.PROVIDER, "the engine is gone")
                found[one.name, "lost"] = await table.play(one, 0, lost)
    finally:
        await player.close()
    return found


@pytest.fixture(scope="module")
def python() -> str:
    found = interpreter("verifiers:any")
    assert found != sys.executable, "no environment for verifiers: make it with `scripts/setup.sh verifiers`"
    return found


@pytest.fixture(scope="module")
def played(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    found = asyncio.run(all_played(tmp_path_factory.mktemp("run"), [CLASSIC, TASKSET], [EVAL]))
    # By itself: a worker takes seconds to import the library.
    return found | asyncio.run(all_played(tmp_path_factory.mktemp("harness"), [HARNESS], []))


@pytest.mark.parametrize(
    ("name", "index", "turns", "reward", "metrics"),
    [
        ("classic", 0, 1, 1.0, {"right": 1.0, "length": 1.0, "num_turns": 1.0}),
        ("classic", TURNS, 2, 0.5, {"right": 0.5, "length": 2.0, "num_turns": 2.0}),
        ("classic", TOOLS + 1, 2, 1.0, {"right": 1.0, "length": 1.0, "total_tool_calls": 1.0, "add_calls": 1.0}),
        ("taskset", 0, 1, 1.0, {"right": 1.0, "turns": 1.0}),
        ("taskset", 5, 2, 1.0, {"right": 1.0, "turns": 2.0}),
        ("harness", 0, 2, 1.0, {"right": 1.0}),
    ],
)
def test_an_episode_is_rewarded_by_the_library_and_every_trained_token_is_an_engines(
    played: dict[Any, Any], name: str, index: int, turns: int, reward: float, metrics: dict[str, float]
) -> None:
    one = played[name, index]
    outcome = one.outcome
    assert (outcome.error, outcome.stop, outcome.num_turns) == (None, StopReason.TERMINATED, turns)
    assert (outcome.reward, outcome.metrics | metrics) == (reward, outcome.metrics)
    assert len(one.returned) == turns
    assert one.trained == [token for tokens in one.returned for token in tokens]


def test_tasks_are_rows_in_their_order_and_fields_of_the_state_are_recorded(played: dict[Any, Any]) -> None:
    assert (played["classic"], played["taskset"]) == (14, 8)
    prompts = {
        name: [played[name, index].outcome.messages[1]["content"] for index in (0, 2)]
        for name in ("classic", "taskset")
    }
    assert prompts == {"classic": ["3 + 3?", "4 + 3?"], "taskset": ["3 + 3?", "4 + 3?"]}
    assert [played["classic", index].outcome.task_key for index in (0, TOOLS)] == [0, TOOLS]
    assert played["classic", TURNS].outcome.info == {"guesses": [5]}


def test_an_eval_plays_the_data_set_for_evals(played: dict[Any, Any]) -> None:
    # Of the other data set there is one row, and it is 3 + 3.
    assert played["evals"] == 8
    first = played["evals", 0].outcome
    assert (first.messages[1]["content"], first.reward) == ("1 + 4?", 1.0)


@pytest.mark.parametrize(
    ("name", "index", "kind", "problem"),
    [
        ("classic", TURNS + 1, ErrorKind.INFRASTRUCTURE, "sums@0.1: SandboxError: the sandbox is gone"),
        ("classic", TURNS + 2, ErrorKind.ENV, "KeyError: 'board'"),
        ("classic", TURNS + 3, ErrorKind.HARNESS, r"reward function right: ValueError: the scale broke \("),
        ("classic", TURNS + 4, ErrorKind.INFRASTRUCTURE, "reward function right: ConnectionRefusedError: no judge at"),
        ("evals", 7, ErrorKind.AGENT, "the model said nothing, of which verifiers:seeded-sums: reward function right"),
        ("taskset", 1, ErrorKind.HARNESS, "verifiers:seeded-tasks: TaskError: .*ValueError: the scale broke"),
        ("taskset", 3, ErrorKind.HARNESS, "verifiers:seeded-tasks: the task gave no reward"),
        ("classic", 3, ErrorKind.OVERLONG, "without a model turn"),
        ("taskset", 4, ErrorKind.OVERLONG, "without a model turn"),
        ("classic", "lost", ErrorKind.PROVIDER, "the engine is gone"),
        ("taskset", "lost", ErrorKind.PROVIDER, "the engine is gone"),
        ("harness", "lost", ErrorKind.PROVIDER, "the engine is gone"),
        ("harness", 1, ErrorKind.HARNESS, "HarnessError: harness 'seeded-harness' exited 3"),
    ],
)
def test_what_fails_is_classed_and_scores_nothing(
    played: dict[Any, Any], name: str, index: Any, kind: ErrorKind, problem: str
) -> None:
    outcome = played[name, index].outcome
    assert (outcome.error_kind, outcome.reward, outcome.samples) == (kind, None, [])
    assert re.search(problem, outcome.error)


@pytest.mark.parametrize(
    ("name", "index", "turns", "stop"),
    [
        ("classic", TURNS + 7, 3, StopReason.MAX_TURNS),
        ("classic", TURNS + 5, 1, StopReason.PROMPT_TOO_LONG),
        ("taskset", 7, 2, StopReason.TRUNCATED),
    ],
)
def test_limits_of_the_run_end_an_episode_that_is_scored(
    played: dict[Any, Any], name: str, index: int, turns: int, stop: StopReason
) -> None:
    limited = played[name, index]
    outcome = limited.outcome
    assert (outcome.error, outcome.stop, outcome.num_turns, outcome.reward) == (None, stop, turns, 0.0)
    assert limited.trained == [token for tokens in limited.returned for token in tokens]


def test_an_answer_without_words_is_the_models_own_and_scored(played: dict[Any, Any]) -> None:
    for name in ("classic", "taskset"):
        silent = played[name, 2]
        assert (silent.outcome.error, silent.outcome.reward, len(silent.trained)) == (None, 0.0, 1)


REFUSED = [
    ("verifiers:absent-one", {}, r"found no module absent_one in .* or spec\.code, accepted is an environment"),
    ("verifiers:no-environment", {}, "module no_environment has neither load_environment nor a Taskset in __all__"),
    ("verifiers:not-importing", {}, "module not_importing does not import: .*no_such_dependency"),
    (
        "verifiers:seeded-sums",
        {"refuses": "no licence"},
        r"load_environment failed: RuntimeError: no licence \(.*:\d+\)",
    ),
    ("verifiers:seeded-sums", {"level": 3}, "load_environment failed: TypeError: .*'level'"),
    ("verifiers:seeded-sums", {"rewards": "none"}, r"found no reward \(of weight 0: length, num_turns\)"),
    ("verifiers:seeded-sums", {"rewards": "group"}, "its rubric scores whole groups, accepted is one that"),
    (
        "verifiers:seeded-sums",
        {"rewards": "group", "kinds": {"single": [""], "turns": [""]}},
        "its rubric scores whole groups, accepted is one that",
    ),
    ("verifiers:seeded-duel", {}, "several agents take part in it, accepted are environments of one"),
    ("verifiers:seeded-tasks", {"count": 3}, r"environments\.hub\.args: count: Extra inputs are not permitted"),
    ("verifiers:seeded-tasks", {"taskset": {"size": 3}}, "it cannot be loaded: .*size"),
    (
        "verifiers:seeded-tasks",
        {"harness": {"id": "codex"}},
        "found harness 'codex', which needs a container",
    ),
    (
        "verifiers:seeded-harness",
        {"taskset": {"image": "alpine"}},
        "found task 0, which needs the image 'alpine'",
    ),
    (
        "verifiers:seeded-harness",
        {"taskset": {"network_allow": []}},
        "found task 0, which needs a network policy",
    ),
]
ASKING = """
import json, sys
from echorl_orchestrator.environments.loader import load_environment
from echorl_orchestrator.failures import BadInputError
sys.path.insert(0, sys.argv[1])
for kind, args in json.load(sys.stdin):
    try:
        told = f"{len(load_environment('hub', kind, args).tasks)} tasks"
    except BadInputError as error:
        told = str(error)
    print(json.dumps(told), file=sys.__stdout__)
"""


@pytest.fixture(scope="module")
def told(python: str) -> list[str]:
    """What the library's environment says of each."""
    asked = json.dumps([(kind, args) for kind, args, _ in REFUSED])
    command = [python, "-c", ASKING, str(ENVIRONMENTS)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("place", range(len(REFUSED)), ids=[f"{kind} {list(args)}" for kind, args, _ in REFUSED])
def test_what_cannot_be_played_refuses_the_run_and_names_the_id(told: list[str], place: int) -> None:
    kind, _, problem = REFUSED[place]
    assert re.search(problem, told[place].replace("\n", " "))
    assert kind in told[place] or "environments.hub.args" in told[place]
