"""The pictures of docs/view.md: two small runs from seeds, as a browser shows them.

PYTHONPATH=tests/support .venv/bin/python -m benchmarks.view.pictures --out docs/pictures
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.view.__main__ import served
from benchmarks.view.run_folder import RunWriter, Shape
from echorl_testing import browser as browsers

_SHAPE = Shape(steps=60, episodes=16, tokens=True)
_EPISODE = "episode?kind=train&attempt=1&step=60&episode=a1-g000960-e1"
PICTURES = {"view-runs": ("", ""), "view-tokens": (_EPISODE, "Tokens"), "view-time": (_EPISODE, "Time")}
"""Address and tab by name."""
_STILL_S = 4.0
"""Until charts are drawn and ripples of clicks are gone."""


def main() -> int:
    """Write them as PNG."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.view.pictures")
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        roots = [Path(folder) / name for name in ("with-echo", "rl-only")]
        for seed, root in enumerate(roots, start=1):
            RunWriter(root, root.name, seed, _SHAPE).write()
        with served(*roots) as address, browsers.chromium() as browser:
            browser.set_window_size(1280, 800)
            for name, (path, tab) in PICTURES.items():
                browser.get(f"{address}{path}")
                time.sleep(_STILL_S)
                if tab:
                    browser.find_element("xpath", f"//div[contains(@class, 'q-tab')][starts-with(., '{tab}')]").click()
                time.sleep(_STILL_S)
                browser.save_screenshot(str(out / f"{name}.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
