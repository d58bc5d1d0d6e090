"""Every alert, by the real promtool: its rule is valid, it fires, it does not fire, and it has a runbook."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from echorl_operator.cluster.lists import StreamSettings
from echorl_operator.cluster.watchdog import WatchdogLimits
from echorl_testing.alert_rules import FILES, alert_rules, selectors
from echorl_testing.prometheus import program
from monitoring.reference import roles

ROOT = Path(__file__).resolve().parents[2]
CASES = Path(__file__).parent / "alerts"
SECTIONS = ["What it means", "What to look at", "What to do"]
ALERTS = sorted(alert_rules())


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_rules_are_valid() -> None:
    found = promtool("check", "rules", *FILES)
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


@pytest.mark.parametrize(("expr", "fires"), [("vector(0) > 1", True), ("vector(1)", False)], ids=["never", "always"])
@pytest.mark.parametrize("alert", ALERTS)
def test_its_cases_see_a_rule_that_never_or_always_fires(alert: str, expr: str, *, fires: bool, tmp_path: Path) -> None:
    """Of an alert that never fires those cases that want it; of one that always does, those that do not."""
    rule = {**alert_rules()[alert], "expr": expr}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "changed", "rules": [rule]}]}))
    document = yaml.safe_load((CASES / f"{alert}.yaml").read_text())
    document["rule_files"] = ["rules.yaml"]
    seen = []
    for number, case in enumerate(document["tests"]):
        for one in [one for one in case["alert_rule_test"] if bool(one.get("exp_alerts")) is fires]:
            file = tmp_path / f"case{number}.yaml"
            file.write_text(yaml.safe_dump({**document, "tests": [{**case, "alert_rule_test": [one]}]}))
            found = promtool("test", "rules", file)
            seen.append(found.returncode == 1 and f"alertname: {alert}" in found.stdout + found.stderr)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("alert", ALERTS)
def test_it_says_how_bad_it_is_and_what_to_do(alert: str) -> None:
    rule = alert_rules()[alert]
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{alert}.md"
    text = (ROOT / rule["annotations"]["runbook"]).read_text()
    assert text.startswith(f"# {alert}\n")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == SECTIONS
    assert "    kubectl " in text


def test_a_watch_counts_as_dead_later_than_a_quiet_one_is_heard_of_and_before_the_process_ends_itself() -> None:
    (limit,) = re.findall(r"> (\d+)", alert_rules()["EchoRLOperatorWatchDead"]["expr"])
    assert StreamSettings().longest_quiet_s <= float(limit) < WatchdogLimits().silence_s
    assert f"more than {limit} s" in (ROOT / "docs" / "runbooks" / "EchoRLOperatorWatchDead.md").read_text()


def test_rules_ask_for_metrics_that_there_are() -> None:
    known = {one.name for metrics in roles().values() for one in metrics}
    asked = {one.split("{")[0] for rule in alert_rules().values() for one in selectors(rule["expr"])}
    assert len(asked) > 10
    assert asked <= known


def test_there_is_no_case_or_runbook_without_an_alert() -> None:
    assert [file.stem for file in sorted(CASES.glob("*.yaml"))] == ALERTS
    assert [file.stem for file in sorted((ROOT / "docs" / "runbooks").glob("EchoRL*.md"))] == ALERTS
