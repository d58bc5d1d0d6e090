from pathlib import Path

from echorl_cli.convert.keys import KEYS
from echorl_cli.convert.renames import RENAMES
from tools.migration_page import page

PAGE = Path(__file__).parents[3] / "docs" / "migration.md"


def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_key_and_every_spelling_is_on_it():
    text = page()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(any(key.key.rpartition(".")[2] in row for row in rows) for key in KEYS)
    assert all(any(f"{rename.other.rpartition('.')[2]}`" in row for row in rows) for rename in RENAMES)
