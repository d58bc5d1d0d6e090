"""The children of two runs, and what an environment that is an image adds to a run's, as YAML.

``ECHORL_UPDATE_GOLDEN=1`` writes the files anew.
"""

import os
from pathlib import Path

import pytest
import yaml

from echorl_testing.operator.rendered import MANIFESTS, children, manifest, rendered

GOLDEN = Path(__file__).parents[3] / "golden" / "children"
PART = {"games": "-env"}
"""What the names of the shown children have in them; of other runs all are."""


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_renders_to_golden_children(name):
    shown = [body for body in children(rendered(manifest(name))) if PART.get(name, "") in body["metadata"]["name"]]
    text = yaml.safe_dump_all(shown, sort_keys=False, width=120)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("ECHORL_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
