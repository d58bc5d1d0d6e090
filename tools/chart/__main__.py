"""``python -m tools.chart ROOT``: writes the CRD, and what of the charts and docs/install.md comes from the code."""

import sys
from pathlib import Path

from echorl_manifest.crd.assembly import crd_text
from tools.chart.page import page_with_values
from tools.chart.refusals import refused_text
from tools.chart.schema import schema_text


def write(root: Path) -> None:
    """Write every generated file below the repository's ``root``."""
    chart, page = root / "charts" / "echorl", root / "docs" / "install.md"
    (root / "crds" / "echorlruns.yaml").write_text(crd_text())
    (root / "charts" / "echorl-crds" / "templates" / "echorlruns.yaml").write_text(crd_text(keep=True))
    (chart / "values.schema.json").write_text(schema_text())
    (chart / "files" / "refused.yaml").write_text(refused_text())
    page.write_text(page_with_values(page.read_text()))


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
