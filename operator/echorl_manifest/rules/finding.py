"""What a rule finds, and how rules go through a spec."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from echorl_core.problem import Problem
from echorl_manifest.models.environments import EvalEnvironment, TrainEnvironment
from echorl_manifest.models.run import EchoRLRunSpec
from echorl_manifest.schema import found_text


@dataclass(frozen=True)
class Finding:
    """A problem, and the paths whose values it rests on: it is not told when one of these is wrong by itself."""

    problem: Problem
    depends_on: tuple[str, ...]


def finding(path: str, value: object, accepted: str, reason: str = "", *, also: Iterable[str] = ()) -> Finding:
    """A finding about ``path``; ``also`` are further paths that it rests on."""
    found = "nothing" if value is None else found_text(value)
    return Finding(Problem(path, found, accepted, reason), (path, *also))


def train_environments(spec: EchoRLRunSpec) -> Iterator[tuple[str, TrainEnvironment]]:
    """Train environments with their paths."""
    for index, environment in enumerate(spec.environments.train):
        yield f"spec.environments.train[{index}]", environment


def eval_environments(spec: EchoRLRunSpec) -> Iterator[tuple[str, EvalEnvironment]]:
    """Eval environments with their paths."""
    for index, environment in enumerate(spec.environments.eval):
        yield f"spec.environments.eval[{index}]", environment
