"""What our packages install beside modules: all of it, or code that reads a file works in a checkout alone."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


PROJECTS = sorted([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("operator/distributions/*/pyproject.toml")])


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_files_that_are_no_modules_are_installed(project: Path) -> None:
    setuptools = tomllib.loads(project.read_text())["tool"]["setuptools"]
    patterns: dict[str, list[str]] = setuptools["package-data"]
    find = setuptools["packages"]["find"]
    folder = (project.parent / find.get("where", ["."])[0]).resolve()
    installed = {
        path
        for package, wanted in patterns.items()
        for pattern in wanted
        for path in (folder / package.replace(".", "/")).glob(pattern)
    }
    packages = [path for pattern in find["include"] for path in folder.glob(pattern) if path.is_dir()]
    files = {path for package in packages for path in package.rglob("*") if path.is_file()}
    assert {path for path in files if path.suffix not in {".py", ".pyc"}} == installed != set()
