"""What can be known of the images without building them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
IMAGES = ("operator", "orchestrator", "trainer", "inference")
_PIN = re.compile(r"^(?P<name>[a-z0-9.-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)

_IMPORT_WITH_ONLY = """
import importlib, re, sys
from importlib.metadata import packages_distributions

allowed, by_module = set(sys.argv[2:]), packages_distributions()

class OfTheImage:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        owners = {re.sub("[-_.]+", "-", owner.lower()) for owner in by_module.get(name.partition(".")[0], ())}
        return None if owners and not owners & allowed else self.finder.find_spec(name, path, target)

# Who asks whether a module is there gets no for an answer, as in the image.
sys.meta_path[:] = [OfTheImage(finder) for finder in sys.meta_path]
importlib.import_module(sys.argv[1])
"""
_OURS = {
    "operator": ("echorl-core", "echorl-manifest", "echorl-operator"),
    "orchestrator": ("echorl-core", "echorl-orchestrator"),
    "trainer": ("echorl-core", "echorl-trainer"),
    "inference-cpu": ("echorl-core", "echorl-trainer"),
    "inference-cuda": ("echorl-core", "echorl-trainer"),
}


def text(image: str) -> str:
    return (REPOSITORY / "images" / image / "Dockerfile").read_text()


def pins(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for match in _PIN.finditer((REPOSITORY / "requirements" / f"{name}.txt").read_text()):
        found.setdefault(match["name"], set()).add(match["version"])
    return found


def torch_stage(image: str) -> str:
    _, _, rest = text(image).partition("FROM ${BASE} AS torch\n")
    return rest.partition("\nFROM ")[0].strip()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_our_user_from_a_base_that_can_be_chosen_and_says_what_it_is(image: str) -> None:
    lines = text(image).splitlines()
    assert "ARG BASE=python:3.11-slim-bookworm" in lines
    assert {line.split()[1] for line in lines if line.startswith("FROM ")} <= {
        *("${BASE}", "tools", "torch", "system-${VARIANT}")
    }
    assert lines.index("USER 10001:10001") > max(
        i for i, line in enumerate(lines) if line.startswith(("RUN ", "COPY "))
    )
    assert "--uid 10001 --gid 10001" in text(image)
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in text(image)


def test_the_sandbox_daemon_is_one_program_and_runs_as_our_user() -> None:
    lines = text("sandbox-daemon").splitlines()
    steps = [line for line in lines if line.split()[:1] in (["FROM"], ["COPY"], ["RUN"], ["USER"], ["ENTRYPOINT"])]
    assert steps == ["FROM scratch", "COPY daemon /daemon", "USER 10001:10001", 'ENTRYPOINT ["/daemon"]']
    for label in ("title", "description", "licenses", "version", "revision", "base.name"):
        assert f"org.opencontainers.image.{label}=" in text("sandbox-daemon")


def test_the_sandbox_daemon_is_built_with_the_standard_library_alone_and_stays_small() -> None:
    folder = REPOSITORY / "images" / "sandbox-daemon"
    assert "require" not in (folder / "go.mod").read_text()
    lines = [line.strip() for file in folder.glob("*.go") for line in file.read_text().splitlines()]
    assert sum(bool(line) and not line.startswith("//") for line in lines) <= 700


@pytest.mark.parametrize("image", IMAGES)
def test_every_package_that_is_installed_is_pinned_by_hash_or_ours(image: str) -> None:
    installs = re.findall(r"(?:pip install|pip sync|pip wheel)[^\n]*(?:\\\n[^\n]*)*", text(image))
    assert installs
    for install in installs:
        assert "--require-hashes" in install or ("--no-deps" in install and "--no-index" in install), install


def test_trainer_and_inference_share_the_layer_with_torch() -> None:
    assert torch_stage("trainer") == torch_stage("inference") != ""


@pytest.mark.parametrize("name", ["trainer", "inference-cpu", "inference-cuda"])
def test_the_shared_layer_has_the_versions_of_each_environment(name: str) -> None:
    shared, wanted = pins("torch"), pins(name)
    # The CPU build of vLLM wants an older one; it is small, and replaced.
    different = {package for package in shared if not wanted.get(package, set()) & shared[package]} - {"setuptools"}
    assert not different


@pytest.mark.parametrize(
    ("module", "requirements"),
    [
        ("echorl_operator.__main__", "operator"),
        ("echorl_orchestrator.__main__", "orchestrator"),
        ("echorl_prepare.__main__", "orchestrator"),
        ("echorl_trainer.pod", "trainer"),
        ("echorl_vllm.__main__", "inference-cpu"),
        ("echorl_vllm.__main__", "inference-cuda"),
    ],
)
def test_what_a_pod_starts_needs_no_package_that_its_image_lacks(module: str, requirements: str) -> None:
    allowed = [*_OURS[requirements], *pins(requirements)]
    command = [sys.executable, "-P", "-c", _IMPORT_WITH_ONLY, module, *allowed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
