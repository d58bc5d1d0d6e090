"""``kubectl apply -f examples/quickstart-cluster.yaml``: a model learns in pods, and everything is free in the end."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from echorl_cli.report import write_report
from echorl_testing.cluster.nodes import is_ready
from echorl_testing.cluster.processes import wait_for
from echorl_testing.cluster.volumes import folder_volume
from echorl_testing.operator.real_run import RealRun
from echorl_testing.operator.site import REPOSITORY, Site, own

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.vllm]

EXAMPLES = REPOSITORY / "examples"
MODEL = REPOSITORY / "runs" / "models" / "quickstart"
SHELF = "quickstart-model"
START_S, TRAIN_S, END_S = 600.0, 2400.0, 120.0


@pytest.fixture
def folder(installed: Site, tmp_path: Path) -> Iterator[Path]:
    """What the claim of the example holds: the model, put there as docs/install.md says."""
    subprocess.run(
        [sys.executable, "-m", "examples.prepare_model", "--manifest", EXAMPLES / "quickstart.yaml"],
        cwd=REPOSITORY,
        check=True,
        timeout=START_S,
    )
    volume = tmp_path / "volume"
    volume.mkdir()
    own(volume)
    run, where = installed.transcript.run, ("--namespace", installed.namespace)
    with folder_volume(installed.cluster.api, installed.namespace, "quickstart", volume):
        run("kubectl", *where, "apply", "--filename", EXAMPLES / "quickstart" / "cluster-volume.yaml")
        pod = f"/api/v1/namespaces/{installed.namespace}/pods/{SHELF}"
        wait_for("the pod waits for the model", lambda: is_ready(installed.cluster.api.get(pod)), seconds=START_S)
        run("kubectl", *where, "exec", SHELF, "--", "mkdir", "-p", "/volume/models")
        run("kubectl", *where, "cp", MODEL, f"{SHELF}:/volume/models/quickstart")
        run("kubectl", *where, "delete", "pod", SHELF, "--grace-period=1")
        yield volume
        for example in ("quickstart-cluster.yaml", "quickstart/cluster-volume.yaml"):
            run("kubectl", *where, "delete", "--filename", EXAMPLES / example, "--ignore-not-found")


def test_the_quickstart_learns_in_pods(installed: Site, folder: Path) -> None:
    run = installed.apply(EXAMPLES / "quickstart-cluster.yaml")
    run.started(START_S)
    installed.transcript.say(split(run))
    installed.tell(run)
    status = run.phase("Succeeded", TRAIN_S)
    run.note("succeeded")
    run.until("pods are free", lambda: not run.pods("trainer") and not run.pods("inference"), END_S)
    run.note("trainer and engine are free")
    run.until("the orchestrator has ended by itself", lambda: run.ended_well("orchestrator"), END_S)
    installed.transcript.run(
        "kubectl", "--namespace", run.namespace, "logs", run.pod("orchestrator")["metadata"]["name"]
    )
    installed.tell(run)
    assert (status["step"], status["attempt"], status["checkpoint"]["step"]) == (44, 1, 44)
    write_report(folder / "runs" / "quickstart", MODEL)
    figures = json.loads((folder / "runs" / "quickstart" / "report.json").read_text())
    told = {key: value for key, value in figures.items() if not isinstance(value, list | dict)}
    installed.transcript.say(f"{json.dumps(told, indent=1)}\n{json.dumps(figures['eval'])}")
    assert figures["reward_first5"] <= 0.4
    assert figures["reward_last5"] >= 0.75
    assert figures["env_nll_last5"] <= 0.7 * figures["env_nll_first5"]
    assert figures["max_staleness"] <= 1
    assert figures["logprob_gap_tokens"] > 0


def split(run: RealRun) -> str:
    """Where the time of a start went, pod by pod, from their own conditions (whole seconds)."""
    lines = ["pod: created, to a node, container begins, ready (seconds after the one before)"]
    for name, pod in sorted(run.pods().items()):
        began = [one["state"].get("running") or one["state"].get("terminated") for one in containers(pod)]
        moments = [
            pod["metadata"]["creationTimestamp"],
            condition(pod, "PodScheduled"),
            began[0]["startedAt"] if began and began[0] else None,
            condition(pod, "Ready"),
        ]
        lines.append(f"{name}: {', '.join(steps(moments))}")
    return "\n".join(lines)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["status"].get("containerStatuses", [])
    return found


def condition(pod: dict[str, Any], kind: str) -> str | None:
    found = [one for one in pod["status"].get("conditions", []) if (one["type"], one["status"]) == (kind, "True")]
    return found[0]["lastTransitionTime"] if found else None


def steps(moments: list[str | None]) -> Iterator[str]:
    yield str(moments[0])
    times = [None if one is None else datetime.fromisoformat(one).timestamp() for one in moments]
    for before, after in pairwise(times):
        yield "-" if before is None or after is None else f"+{after - before:.0f}"
