"""Builds the model of an example's manifest unless it is there, made from the same.

    python -m examples.prepare_model --manifest examples/quickstart.yaml

Manifests of other models are left alone.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import yaml

MODULES = {
    Path("runs/models/quickstart"): "examples.quickstart.model",
    Path("runs/models/teacher"): "examples.quickstart.model",
    Path("runs/models/seeded"): "examples.quickstart.model",
    Path("runs/models/choice"): "examples.choice.model",
    Path("runs/models/swe"): "examples.swe.model",
}
"""Where each model's recipe is: imported only for a manifest that needs it, since torch comes with it."""


def build_unless_there(folder: Path, key: str, build: Callable[[], None]) -> None:
    """Build the model in ``folder`` unless it was made from the same."""
    stamp = folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == key:
        return
    started = time.monotonic()
    build()
    stamp.write_text(key)
    print(f"warm start: {folder} in {time.monotonic() - started:.0f} s")  # noqa: T201


def prepare(model: Path, seed: int, folder: Path | None = None) -> None:
    """Build ``model`` in ``folder`` (None: where it belongs) unless it is there."""
    recipe, folder = import_module(MODULES[model]).MODELS[model], folder or model
    build_unless_there(folder, recipe.key_of(seed), lambda: recipe.build(folder, seed))


def model_and_seed(manifest: Path) -> tuple[Path, int] | None:
    """The model that a manifest names, and its seed; None where the run itself will say what is wrong with it."""
    try:
        spec = yaml.safe_load(manifest.read_text())["spec"]
        return Path(spec["model"]["name"]), spec.get("seed", 42)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="folder to build instead of the manifest's")
    parser.add_argument("--seed", type=int, help="default: the manifest's seed")
    options = parser.parse_args()
    if (named := model_and_seed(options.manifest)) is not None and named[0] in MODULES:
        prepare(named[0], named[1] if options.seed is None else options.seed, options.model)
    return 0


if __name__ == "__main__":
    sys.exit(main())
