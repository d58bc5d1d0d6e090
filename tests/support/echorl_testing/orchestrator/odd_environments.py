"""Environments that do what environments should not, for tests of the workers. Runs in worker processes."""

import asyncio
import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Any

from echorl_orchestrator.advantages.advantage_hook import AdvantageInputs
from echorl_orchestrator.filters.filter_hook import FilterEpisode
from echorl_orchestrator.sandboxes.contract import SandboxError, SandboxLoss
from echorl_orchestrator.types import (
    Action,
    AgentError,
    Environment,
    HarnessError,
    InfrastructureError,
    Limits,
    RunnerResult,
    Span,
    Step,
)


class Odd:
    """Does at its first step what the task's ``does`` says, and ends at the second one."""

    def __init__(self, marks: str | None) -> None:
        self._marks = marks

    def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:
        self._does = task["does"]
        self._episode = episode_id
        self._steps = 0
        if self._does == "reset raises":
            raise ValueError("no such level")
        if self._does == "end at once":
            return Step([{"role": "user", "content": "x"}], terminated=True, reward=1.0)
        if self._does == "long prompt":
            return Step([{"role": "user", "content": "x" * 2000}])
        return Step([{"role": "user", "content": "x"}], info={"seed": seed, "secret": 1})

    def step(self, action: Action) -> Any:
        self._steps += 1
        more = [{"role": "user", "content": "more"}]
        if self._steps > 1:
            return Step([], reward=0.5, terminated=True)
        odd = getattr(self, self._does.replace(" ", "_"), None)
        return odd() if odd else Step(more, reward=0.25)

    def close(self) -> None:
        if self._marks:
            (Path(self._marks) / f"closed-{self._episode}").touch()
        if self._does == "close raises":
            raise OSError("busy")

    def enter(self) -> None:
        """Leave a mark for tests that wait until code hangs."""
        if self._marks:
            (Path(self._marks) / "entered").touch()

    def loop(self) -> Step:
        self.enter()
        while True:
            pass

    def sleep(self) -> Step:
        self.enter()
        time.sleep(3600)
        return Step([])

    def exit(self) -> Step:
        os._exit(9)

    def garble(self) -> Step:
        """Write to every socket, the orchestrator's among them, what is a frame's head and no message."""
        for file in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(file.name)).st_mode):
                    os.write(int(file.name), b"\x00\x00\x00\x01\xc1")
        return Step([], reward=1.0, terminated=True)

    def die_once(self) -> Step:
        mark = Path(self._marks or "") / "died"
        if not mark.exists():
            mark.touch()
            os._exit(9)
        return Step([{"role": "user", "content": "more"}], reward=0.25)

    def step_raises(self) -> Step:
        raise KeyError("inventory")

    def system_exit(self) -> Step:
        raise SystemExit(3)

    def nan(self) -> Step:
        return Step([], reward=float("nan"), terminated=True)

    def nan_metric(self) -> Step:
        return Step([], reward=1.0, terminated=True, metrics={"m": float("inf")})

    def unscored(self) -> Step:
        return Step([], terminated=True)

    def wrong_type(self) -> Any:
        return {"messages": []}

    def wrong_reward(self) -> Step:
        return Step([], reward="high", terminated=True)  # type: ignore[arg-type]

    def wrong_role(self) -> Step:
        return Step([{"role": "robot", "content": "x"}])

    def wrong_last_words(self) -> Step:
        return Step([{"role": "assistant", "content": "", "tool_calls": [{"id": 1}]}], reward=1.0, terminated=True)

    def wrong_span(self) -> Step:
        return Step([], warnings=[Span(0, 0, 1)])

    def unsendable(self) -> Step:
        return Step([], reward=1.0, terminated=True, info={"handle": object()})

    def truncate(self) -> Step:
        return Step([], reward=0.75, truncated=True)


class AsyncOdd(Odd):
    """The same with coroutines, on one event loop an episode."""

    async def reset(self, task: dict[str, Any], *, seed: int, episode_id: str) -> Step:  # type: ignore[override]
        self._loop = asyncio.get_running_loop()
        return super().reset(task, seed=seed, episode_id=episode_id)

    async def step(self, action: Action) -> Any:
        self.enter()
        await asyncio.sleep(3600 if self._does == "sleep" else 0)
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("another loop")
        return super().step(action)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


def _tasks(does: list[str]) -> list[dict[str, Any]]:
    return [{"key": number, "does": what} for number, what in enumerate(does)]


def odd(does: list[str], marks: str | None = None) -> Environment:
    """Tasks by what they do."""
    return Environment(_tasks(does), text_env=lambda: Odd(marks))


def async_odd(does: list[str], marks: str | None = None) -> Environment:
    """The same, asynchronous."""
    return Environment(_tasks(does), text_env=lambda: AsyncOdd(marks))


def group_scored(ends: str = "rank") -> Environment:
    """Rewards by the number of characters that each episode's model wrote."""

    def score(task: dict[str, Any], episodes: list[dict[str, Any]]) -> Any:
        if ends == "raise":
            raise RuntimeError("judge is out")
        scores = [float(len(episode["messages"][1]["content"])) for episode in episodes]
        return {"rank": scores, "short": scores[:-1], "nan": [float("nan")] * len(scores)}[ends]

    return Environment(_tasks(["unscored"]), text_env=lambda: Odd(None), score_group=score)


_CLASSED: dict[str, Exception] = {
    "infrastructure": InfrastructureError("no node"),
    "harness": HarnessError("no tests"),
    "agent": AgentError("exit code 9"),
    "evicted": SandboxError(SandboxLoss.EVICTED, "node drained"),
    "overused": SandboxError(SandboxLoss.OVERUSED, "memory"),
}


class Agent:
    """Calls the gateway like any OpenAI agent, ``turns`` times."""

    def __init__(self, turns: int, ends: str) -> None:
        self._turns = turns
        self._ends = ends

    async def run(
        self, task: dict[str, Any], *, base_url: str, session: str, model: str, limits: Limits
    ) -> RunnerResult:
        import aiohttp  # noqa: PLC0415 - only this environment needs it

        if self._ends == "hang":
            await asyncio.sleep(3600)
        if self._ends in _CLASSED:
            raise _CLASSED[self._ends]
        talk: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        async with aiohttp.ClientSession() as http:
            if self._ends == "deaf":
                with contextlib.suppress(aiohttp.ClientError):
                    await http.post(f"{base_url}/chat/completions", json={"messages": talk})
            for _ in range(self._turns):
                body = {"model": model, "messages": talk}
                async with http.post(f"{base_url}/chat/completions", json=body) as answer:
                    said = await answer.json()
                    if answer.status != 200:
                        if self._ends == "forgiving":
                            break
                        if self._ends == "given up":
                            return RunnerResult(reward=0.0, agent_failure="exit code 1")
                        raise RuntimeError(said["error"]["message"])
                talk += [said["choices"][0]["message"], {"role": "user", "content": "go on"}]
            if self._ends == "titled":
                body = {"model": model, "messages": [{"role": "user", "content": "name this talk"}]}
                async with http.post(f"{base_url}/chat/completions", json=body) as answer:
                    await answer.json()
            if self._ends == "polyglot":
                asked = {"messages": talk, "temperature": 0, "max_tokens": 7}
                async with http.post(f"{base_url}/messages", json=asked) as answer:
                    await answer.json()
        return RunnerResult(
            reward=None if self._ends == "unscored" else 0.5, metrics={"turns": float(limits.max_turns or -1)}
        )


def agent(turns: int = 2, ends: str = "well") -> Environment:
    """An EpisodeRunner."""
    return Environment(_tasks(["run"]), runner=Agent(turns, ends))


def keep_even(episode: dict[str, Any], *, shift: int = 0) -> list[list[bool]]:
    """A filter that keeps every second token."""
    return [[(place + shift) % 2 == 0 for place in range(len(row["token_ids"]))] for row in episode["samples"]]


def misaligned(episode: dict[str, Any]) -> list[list[bool]]:
    """A filter that returns one flag too few."""
    return [[True] * (len(row["token_ids"]) - 1) for row in episode["samples"]]


def poor(episode: FilterEpisode, *, below: float) -> bool:
    """A filter: the episode's reward is below a bound."""
    return episode.reward < below


def by_length(inputs: AdvantageInputs, *, does: str = "well") -> Any:
    """Advantages: tokens that each episode sampled beyond the shortest one; or something else."""
    if does == "raise":
        raise RuntimeError("no advantage today")
    lengths = [one.sampled_tokens for one in inputs.episodes]
    found = [length - min(lengths) for length in lengths]
    if does == "array":
        import numpy as np  # noqa: PLC0415 - workers of all other tests start without it

        return np.array(found)
    return found[: 1 if does == "short" else None]
