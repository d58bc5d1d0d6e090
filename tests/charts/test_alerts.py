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
EXPRESSIONS = {"never": ("vector(0) > 1", True), "always": ("vector(1)", False)}
"""Broken rules: the expression, and whether it is the cases which want the alert that must see it."""


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("promtool"), *arguments]
    # It tells of failures on the other stream; together they are in order.
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )


def test_rules_are_valid() -> None:
    found = promtool("check", "rules", *FILES)
    assert found.returncode == 0, found.stdout


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What promtool says of every alert's cases as they are, and of each case with the rule broken in both ways.

    By the name of the file; all in one call, since promtool takes longer to start than to decide.
    """
    folder = tmp_path_factory.mktemp("cases")
    files = [CASES / f"{alert}.yaml" for alert in ALERTS]
    for alert in ALERTS:
        for how in EXPRESSIONS:
            files += _with_rule_broken(folder, alert, how)
    said = promtool("test", "rules", *files)
    assert said.returncode in (0, 1), said.stdout
    parts = (said.stdout).split("Unit Testing: ")[1:]
    found = {Path(part.partition("\n")[0].strip()).name: part for part in parts}
    assert len(found) == len(files)
    return found


def _with_rule_broken(folder: Path, alert: str, how: str) -> list[Path]:
    """Cases that must see it: of an alert that never fires those that want it, of one that always does the others."""
    expr, fires = EXPRESSIONS[how]
    rules = folder / f"{alert}-{how}-rules.yaml"
    rule = {**alert_rules()[alert], "expr": expr}
    rules.write_text(yaml.safe_dump({"groups": [{"name": "changed", "rules": [rule]}]}))
    document = yaml.safe_load((CASES / f"{alert}.yaml").read_text())
    document["rule_files"] = [rules.name]
    files = []
    for number, case in enumerate(document["tests"]):
        for place, one in enumerate(one for one in case["alert_rule_test"] if bool(one.get("exp_alerts")) is fires):
            files.append(folder / f"{alert}-{how}-{number}-{place}.yaml")
            files[-1].write_text(yaml.safe_dump({**document, "tests": [{**case, "alert_rule_test": [one]}]}))
    return files


@pytest.mark.parametrize("alert", ALERTS)
def test_it_fires_when_it_should_and_only_then(alert: str, verdicts: dict[str, str]) -> None:
    assert "SUCCESS" in verdicts[f"{alert}.yaml"], verdicts[f"{alert}.yaml"]
    expected = [
        bool(one.get("exp_alerts"))
        for case in yaml.safe_load((CASES / f"{alert}.yaml").read_text())["tests"]
        for one in case["alert_rule_test"]
        if one["alertname"] == alert
    ]
    assert set(expected) == {True, False}


@pytest.mark.parametrize("how", EXPRESSIONS)
@pytest.mark.parametrize("alert", ALERTS)
def test_its_cases_see_a_rule_that_never_or_always_fires(alert: str, how: str, verdicts: dict[str, str]) -> None:
    seen = [said for name, said in verdicts.items() if name.startswith(f"{alert}-{how}-")]
    assert seen
    assert all("FAILED" in said and f"alertname: {alert}" in said for said in seen), seen


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
