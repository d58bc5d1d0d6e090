"""The dashboards that the chart ships: current, within Grafana's schema, and about metrics that there are."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools.dashboards.__main__ import BOARDS
from tools.dashboards.answers import panels
from tools.dashboards.boards import Unit
from tools.dashboards.grafana import to_json
from tools.metrics_page import roles

FOLDER = Path(__file__).resolve().parents[3] / "charts" / "echorl" / "dashboards"
METRIC = re.compile(r"echorl_(?:orchestrator|trainer|operator|broker)_[a-z_]+")
WITHOUT_UNIT = re.compile(r"_(total|min|max|mean|bucket|sum|count)$")


@pytest.fixture(params=sorted(BOARDS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text())
    return found


def test_the_file_is_as_the_code_is(name: str) -> None:
    assert (FOLDER / name).read_text() == to_json(BOARDS[name]), "stale: run `make generate`"


def test_nothing_is_outside_of_grafanas_schema(name: str) -> None:
    """What the schema's model does not know is lost on the way through it."""
    register_default_plugins()
    found = document(name)
    assert json.loads(json.dumps(Dashboard.from_json(found), cls=JSONEncoder)) == found


def test_queries_are_about_metrics_that_there_are(name: str) -> None:
    declared = {one.name: one.type for metrics in roles().values() for one in metrics}
    series = {name for name, kind in declared.items() if kind != "histogram"}
    series |= {
        f"{name}_{end}" for name, kind in declared.items() if kind == "histogram" for end in ("bucket", "sum", "count")
    }
    asked = {
        metric for panel in panels(FOLDER / name, {}) for one in panel.targets for metric in METRIC.findall(one.expr)
    }
    assert len(asked) > 20
    assert asked <= series


def test_units_are_those_of_the_metrics(name: str) -> None:
    for panel in panels(FOLDER / name, {}):
        for one in panel.targets:
            assert panel.unit == expected(one.expr, panel.unit), f"{panel.title}: {one.expr}"


def expected(expr: str, otherwise: str) -> str:
    """The unit that a query's metrics say; ``otherwise`` where their names say none."""
    metrics = METRIC.findall(expr)
    units = {
        "seconds": Unit.SECONDS,
        "nats": Unit.NATS,
        "bytes": Unit.BYTES,
        "ratio": Unit.SHARE,
        "versions": Unit.VERSIONS,
    }
    bare = [WITHOUT_UNIT.sub("", metric).rsplit("_", 1)[-1] for metric in metrics]
    if "gpu_seconds" in expr:
        return Unit.GPUS
    if "/" in expr and len(set(bare)) == 1 and bare[0] not in units:
        return Unit.SHARE
    if "rate(" in expr and "/" not in expr and "histogram_quantile" not in expr:
        return {"seconds": Unit.SHARE, "tokens": Unit.TOKENS_A_SECOND}.get(bare[0], Unit.A_SECOND)
    return units.get(bare[0], otherwise)


def test_panels_are_told_apart_and_ask_the_chosen_prometheus(name: str) -> None:
    found = [one for one in document(name)["panels"] if one["type"] != "row"]
    places = [(one["gridPos"]["x"], one["gridPos"]["y"]) for one in found]
    assert len(set(places)) == len(places)
    assert len({one["title"] for one in found}) == len(found)
    sources = {one["datasource"]["uid"] for one in found} | {
        each["datasource"]["uid"] for one in found for each in one["targets"]
    }
    assert sources == {"${datasource}"}
    assert all(one["description"] for one in found)
