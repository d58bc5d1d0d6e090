"""What our packages install beside modules: all of it, or code that reads a file works in a checkout alone."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", ["core", "operator", "orchestrator", "trainer"])
def test_files_that_are_no_modules_are_installed(part: str) -> None:
    project = tomllib.loads((ROOT / part / "pyproject.toml").read_text())
    patterns: dict[str, list[str]] = project["tool"]["setuptools"]["package-data"]
    installed = {
        path
        for package, wanted in patterns.items()
        for pattern in wanted
        for path in (ROOT / part / package.replace(".", "/")).glob(pattern)
    }
    packages = [path for path in (ROOT / part).glob("echorl_*") if (path / "__init__.py").exists()]
    files = {path for package in packages for path in package.rglob("*") if path.is_file()}
    assert {path for path in files if path.suffix not in {".py", ".pyc"}} == installed != set()
