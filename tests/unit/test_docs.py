"""The pages for people: their links lead somewhere, and what they list is whole."""

import re
from pathlib import Path

import pytest

from echorl_core.names import ExitCode

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
NAMED_TEST = re.compile(r"\b(tests/[\w/]+\.py)::(\w+)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as they are made from their words: lower case, no punctuation, dashes for spaces."""
    found = set()
    for line in re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).splitlines():
        if line.startswith("#"):
            words = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(words.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    lost = []
    for found in LINK.finditer(CODE.sub("", page.read_text())):
        path, _, anchor = found["target"].partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(found["target"])
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tests_that_are_named_exist(page: Path) -> None:
    lost = []
    for path, name in NAMED_TEST.findall(page.read_text()):
        file = ROOT / path
        if not file.is_file() or not re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE):
            lost.append(f"{path}::{name}")
    assert lost == []


def test_every_exit_code_is_told() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert {str(int(code)) for code in ExitCode} <= set(rows)
