"""Writes the dashboards that the chart ships: ``python -m tools.dashboards charts/echorl/dashboards``."""

import sys
from pathlib import Path

from tools.dashboards.grafana import to_json
from tools.dashboards.operator_board import OPERATOR
from tools.dashboards.run_board import RUN

BOARDS = {"run.json": RUN, "operator.json": OPERATOR}


def write(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, board in BOARDS.items():
        (folder / name).write_text(to_json(board))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
