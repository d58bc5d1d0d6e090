"""Each distribution declares what its packages import, lazy imports too, and nothing that they do not."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from echorl_testing.sources import parsed

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS: dict[str, tuple[Path, list[str]]] = {
    "core": (ROOT / "core", ["echorl_core"]),
    "manifest": (ROOT / "operator/distributions/manifest", ["echorl_manifest"]),
    "operator": (ROOT / "operator/distributions/operator", ["echorl_operator", "echorl_broker"]),
    "cli": (ROOT / "operator/distributions/cli", ["echorl_cli"]),
    "orchestrator": (ROOT / "orchestrator", ["echorl_orchestrator", "echorl_prepare"]),
    "trainer": (ROOT / "trainer", ["echorl_trainer", "echorl_vllm", "echorl_collective"]),
}
NAMES = {"yaml": "pyyaml", "flash_attn": "flash-attn-4", "quack": "quack-kernels"}
"""Of a distribution, where it is not that of its package."""
ELSEWHERE = {
    "manifest": {"pydantic-core"},
    "orchestrator": {"httpx2", "pytest", "datasets", "openai", "verifiers"},
    "trainer": {"triton", "vllm"},
}
"""Parts of pydantic, of the hub's client and of torch for CUDA; what our code is loaded by, in an environment that has
it; the pytest that tasks have in their sandboxes; and what workers import in the environment of verifiers."""


def imported(package: Path) -> Iterator[str]:
    for file in package.rglob("*.py"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                yield from (name.name.split(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                yield node.module.split(".")[0]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_what_is_imported_is_declared(name: str) -> None:
    folder, packages = DISTRIBUTIONS[name]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    optional = [one for several in project.get("optional-dependencies", {}).values() for one in several]
    declared = {one.split("[")[0].split("=")[0].split(">")[0] for one in [*project["dependencies"], *optional]}
    sources = ROOT / "operator" if "distributions" in folder.parts else folder
    found = {one for package in packages for one in imported(sources / package)} - sys.stdlib_module_names
    needed = {NAMES.get(one, one.replace("_", "-")) for one in found} - set(ELSEWHERE.get(name, ()))
    assert needed - {package.replace("_", "-") for package in packages} <= declared
