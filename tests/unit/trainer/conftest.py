"""What most tests of the trainer start from: a single rank, and the folder of a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing.trainer.pod_process import STARTED
from echorl_testing.trainer.tiny_learner import alone, tiny_model
from echorl_trainer.parallel import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with alone() as ranks:
        yield ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(autouse=True)
def no_scripted_pod_is_left() -> Iterator[None]:
    """Also of a test that fails."""
    yield
    while STARTED:
        if (pod := STARTED.pop()).process.poll() is None:
            pod.kill()
