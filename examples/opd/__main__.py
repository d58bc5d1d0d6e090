"""Builds both models, serves the teacher, runs the manifest.

    python -m examples.opd [--out runs/opd] [--set maxSteps=4 ...]

Further arguments are those of ``echorl run``.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import yaml

from examples.opd.teacher import serving
from examples.prepare_model import prepare

MANIFEST = Path("examples/opd.yaml")
TEACHER = Path("runs/models/teacher")
ENGINES = Path(".venv-inference/bin/python")
PORT = 8400


def main() -> int:
    """Command line; the exit code is the run's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/opd"))
    options, further = parser.parse_known_args()
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]
    student = Path(spec["model"]["name"])
    for folder in (student, TEACHER):
        prepare(folder, spec["seed"])
    with serving(ENGINES, TEACHER, Path("runs/teacher"), port=PORT):
        command = [sys.executable, "-m", "echorl_cli", "run", str(MANIFEST), "--out", str(options.out), *further]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
