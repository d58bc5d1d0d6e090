from pathlib import Path

from tools.manifest_page import reference

PAGE = Path(__file__).parents[3] / "docs" / "manifest.md"


def test_reference_page_is_current():
    assert PAGE.read_text() == reference(), "run `make generate`"


def test_reference_names_nested_fields():
    page = reference()
    assert "## spec.environments.train[].echo.tool" in page
    assert "| `toolNames` |" in page
