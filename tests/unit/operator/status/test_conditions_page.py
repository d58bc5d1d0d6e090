"""docs/operator/conditions.md names every condition, reason and event that the operator writes, and no other."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from echorl_core.names import ExitCode
from echorl_core.restarts import Action, Decision
from echorl_manifest.models.status import Condition
from echorl_manifest.schema import keys
from echorl_operator.observed.roles import Checkpoint
from echorl_operator.plan.recovery import reason_of
from echorl_operator.reconcile.passes import TRIPPED
from echorl_operator.status.conditions import PROBLEMS
from echorl_testing.operator.imagined_cluster import ImaginedCluster
from echorl_testing.sources import parsed

ROOT = Path(__file__).parents[4]
CODE = ROOT / "operator" / "echorl_operator"
PAGE = (ROOT / "docs" / "operator" / "conditions.md").read_text()
WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")
HEALED = {"Healed"}
FAILURES = {
    reason_of(Decision(Action.FAIL, "", exit_code=int(code), by_rule=by_rule))
    for code in ExitCode
    if code is not ExitCode.OK
    for by_rule in (False, True)
}
OF_KUBERNETES = {
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    *("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox", "FailedCreate"),
    *("Error", "Completed", "Pulling", "Pulled", "Created", "Started", "Lost", "Starting"),
    *("Pod", "PersistentVolumeClaim", "Service", "ConfigMap", "Secret", "ServiceAccount", "StatefulSet"),
    "ValidatingAdmissionPolicy",
}
"""Words in ``diagnosis`` that are read, not said; and a phase."""


def rows(heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without its head; names in the first cell, each in a row of its own."""
    text = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return [
        [name, *(cell.strip() for cell in cells[1:])] for cells in lines for name in re.findall("`(.*?)`", cells[0])
    ]


def names(heading: str) -> set[str]:
    found = [row[0] for row in rows(heading)]
    assert len(found) == len(set(found)), f"{heading}: one is told twice"
    return set(found)


def calls(*of: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of functions and methods of these names in what plans, says and begins attempts."""
    for file in sorted((CODE / "plan").glob("*.py")):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in of:
                    yield name, node


def words(node: ast.AST) -> set[str]:
    """CamelCase words that an expression may be."""
    if isinstance(node, ast.IfExp):
        return words(node.body) | words(node.orelse)
    is_word = isinstance(node, ast.Constant) and isinstance(node.value, str) and WORD.fullmatch(node.value)
    return {node.value} if is_word else set()  # type: ignore[attr-defined]


def words_in(file: Path) -> set[str]:
    return {word for node in ast.walk(parsed(file)) for word in words(node)}


def said(place: dict[str, int]) -> set[str]:
    """Reasons, by the function and the place of its argument that they are given at."""
    return {word for name, call in calls(*place) for word in words(call.args[place[name]])}


def events() -> dict[str, set[str]]:
    """Types by event."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, call in calls("note", "fail", "begin_attempt"):
        if name == "note":
            kind = "Warning" if any(one.arg == "warning" for one in call.keywords) else "Normal"
        elif name == "fail":
            kind = "Warning"
        else:
            kind = "Warning" if ast.unparse(call.args[2]) == "Phase.RESTARTING" else "Normal"
        for word in words(call.args[{"note": 0, "fail": 1, "begin_attempt": 3}[name]]):
            found[word].add(kind)
    for word in (*FAILURES, *PROBLEMS, TRIPPED):
        found[word].add("Warning")
    return found


def condition_types() -> set[str]:
    """Of a run that has everything that conditions tell, and everything wrong."""
    elastic = {"replicas": 2, "gpusPerReplica": 0, "elastic": {"minReplicas": 1}}
    cluster = ImaginedCluster(algorithm={"maxStaleness": 1}, trainer=elastic).begin()
    told = {"staleness_max": 1, "steps_without_rl": 0, "infrastructure_losses": ()}
    cluster.say(step=7, checkpoint=Checkpoint(5, "2026-01-01T00:00:00Z", 9), **told)
    return {one["type"] for one in cluster.settle().status["conditions"]} | set(PROBLEMS)


def test_every_condition_is_told() -> None:
    assert names("Conditions") == condition_types()
    description = keys(Condition)["type"].description or ""
    assert condition_types() <= set(WORD.findall(description))


def test_problems_are_those_that_stand_last() -> None:
    assert {row[0] for row in rows("Conditions") if row[2] == "`Healed`"} == set(PROBLEMS)


def test_every_reason_of_a_phase_is_told() -> None:
    failed = names("Failed") - {"NotFailed"}
    assert names("Ready and Progressing") | failed == said({"say": 1, "begin_attempt": 3, "fail": 1}) | FAILURES


def test_every_reason_of_an_aspect_is_told() -> None:
    of_module = words_in(CODE / "status" / "conditions.py")
    told = names("TrainerReady, InferenceReady, OrchestratorReady") | names("CheckpointCommitted")
    told |= (
        names("OffPolicyBounded")
        | names("RewardSignal")
        | names("EpisodeInfrastructure")
        | names("GangWhole")
        | HEALED
        | {"NotFailed"}
    )
    assert told == of_module - condition_types() - {"True", "False", "Unknown"}


def test_every_reason_of_a_failure_is_told() -> None:
    assert names("Failed") == said({"fail": 1}) | FAILURES | {"NotFailed"}


def test_every_reason_of_a_problem_is_told() -> None:
    explained = words_in(CODE / "diagnosis" / "obstacles.py") | words_in(CODE / "diagnosis" / "refusals.py")
    assert names("Blocked") == explained - OF_KUBERNETES
    told = names("InvalidSpec") | names("NodeLost") | names("Stalled")
    assert told == said({"problem": 1})


def test_every_reason_of_waiting_sandboxes_is_told() -> None:
    assert names("Sandboxes in pods") == words_in(CODE / "diagnosis" / "sandboxes.py")


def test_every_event_is_told_with_its_type() -> None:
    assert names("Events") == set(events())
    for name, kind, _ in rows("Events"):
        assert set(kind.split(", ")) == events()[name], name
