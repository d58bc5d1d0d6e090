"""The report of a run: ``report.json`` for scripts, ``report.html`` for people."""

from pathlib import Path

from echorl_cli.output_path import check_output_folder, write_output
from echorl_cli.records import name_of, read_records
from echorl_cli.report.page import render
from echorl_cli.report.summary import summary
from echorl_core import jsonsafe


def write_report(root: Path, model_path: Path | None = None, out: Path | None = None) -> Path:
    """Write ``report.json`` and ``report.html`` of the run in ``root``; returns the page's path.

    Args:
        root: directory of the run.
        model_path: folder of its model, for the reference figures in ``baselines.json``.
        out: folder to write to; default: ``root``.

    Raises:
        DamagedRecords: a file of the run holds something else than was written.
        OutputRefused: the folder, or a file in it, cannot be written.
    """
    folder = out or root
    check_output_folder(folder, "--out")
    records = read_records(root, model_path)
    figures = summary(records)
    page = render(name_of(root), records, figures)
    write_output(folder / "report.json", (jsonsafe.dumps(figures, indent=2) + "\n").encode(), "--out")
    write_output(folder / "report.html", page.encode(errors="replace"), "--out")
    return folder / "report.html"
