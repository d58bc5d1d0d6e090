"""Builds the model, serves the judge, runs the manifest.

    python -m examples.judge [--out runs/debate-judged] [--set maxSteps=4 ...]

Further arguments are those of ``echorl run``.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from examples.judge.server import serving
from examples.prepare_model import prepare

MANIFEST = Path("examples/debate-judged.yaml")


def main() -> int:
    """Command line; the exit code is the run's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/debate-judged"))
    options, further = parser.parse_known_args()
    spec = yaml.safe_load(MANIFEST.read_text())["spec"]
    judge = spec["environments"]["train"][0]["members"]["judge"]
    prepare(Path(spec["model"]["name"]), spec["seed"])
    with serving(urlsplit(judge["url"]).port or 0):
        command = [sys.executable, "-m", "echorl_cli", "run", str(MANIFEST), "--out", str(options.out), *further]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
