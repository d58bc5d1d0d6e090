"""Every alert, by the real promtool: its rule is valid, it fires, it does not fire, and it has a runbook."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from echorl_testing.prometheus import program
from monitoring.reference import roles

ROOT = Path(__file__).resolve().parents[2]
RULES = sorted((ROOT / "charts" / "echorl" / "rules").glob("*.yaml"))
CASES = Path(__file__).parent / "alerts"
SECTIONS = ["What it means", "What to look at", "What to do"]
METRIC = re.compile(r"\bechorl_(?:orchestrator|trainer|operator)_[a-z_]+")


def rules() -> dict[str, dict[str, Any]]:
    groups = [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


ALERTS = sorted(rules())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_rules_are_valid() -> None:
    found = promtool("check", "rules", *RULES)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_it_fires_when_it_should_and_only_then(alert: str) -> None:
    found = promtool("test", "rules", CASES / f"{alert}.yaml")
    assert found.returncode == 0, found.stdout + found.stderr
    expected = [
        bool(one.get("exp_alerts"))
        for case in yaml.safe_load((CASES / f"{alert}.yaml").read_text())["tests"]
        for one in case["alert_rule_test"]
        if one["alertname"] == alert
    ]
    assert set(expected) == {True, False}


@pytest.mark.parametrize("alert", ALERTS)
def test_it_says_how_bad_it_is_and_what_to_do(alert: str) -> None:
    rule = rules()[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{alert}.md"
    text = (ROOT / rule["annotations"]["runbook"]).read_text()
    assert text.startswith(f"# {alert}\n")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    assert "    kubectl " in text


def test_rules_ask_for_metrics_that_there_are() -> None:
    known = {one.name for metrics in roles().values() for one in metrics}
    asked = {name for rule in rules().values() for name in METRIC.findall(rule["expr"])}
    assert len(asked) > 10
    assert asked <= known


def test_there_is_no_case_or_runbook_without_an_alert() -> None:
    assert [file.stem for file in sorted(CASES.glob("*.yaml"))] == ALERTS
    assert [file.stem for file in sorted((ROOT / "docs" / "runbooks").glob("EchoRL*.md"))] == ALERTS
