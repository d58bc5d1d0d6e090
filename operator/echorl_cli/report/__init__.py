"""The report of a run: ``report.json`` for scripts, ``report.html`` for people."""

import json
from pathlib import Path

from echorl_cli.report.page import render
from echorl_cli.report.records import read_records
from echorl_cli.report.summary import summary
from echorl_core import jsonsafe
from echorl_core.rundir import RunDirectory


def write_report(root: Path, model_path: Path | None = None) -> Path:
    """Write ``report.json`` and ``report.html`` of the run in ``root``; returns the page's path."""
    records = read_records(root, model_path)
    figures = summary(records)
    identity = RunDirectory(root).identity_file
    name = json.loads(identity.read_text()).get("name", root.name) if identity.is_file() else root.name
    (root / "report.json").write_text(jsonsafe.dumps(figures, indent=2) + "\n")
    page = root / "report.html"
    page.write_text(render(name, records, figures), encoding="utf-8")
    return page
