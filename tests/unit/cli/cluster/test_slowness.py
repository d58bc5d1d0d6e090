import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_cli.cluster.slowness import ENOUGH_S, NOTICEABLE, slowness
from echorl_orchestrator.accounting.ledger import Ledger
from echorl_orchestrator.accounting.meter import NAME

# GPU-seconds: each role's add up to 1000, so a tenth of a number is its share in per cent.
BUSY = {"useful": 900, "waiting": 100}
CASES: dict[str, tuple[dict[str, int], dict[str, int], list[str], dict[str, float]]] = {
    "engines": (
        {"useful": 300, "waiting": 700},
        {"useful": 900, "stale": 100},
        ["spec.inference.replicas", "spec.inference.autoscale", "spec.algorithm.oversampling"],
        {"trainer/waiting": 0.7, "inference/useful": 0.9},
    ),
    "environments": (
        {"useful": 300, "waiting": 700},
        {"useful": 400, "waiting": 600},
        ["spec.algorithm.maxStaleness", "spec.algorithm.oversampling", "spec.environments.train[].maxConcurrent"],
        {"trainer/waiting": 0.7, "inference/waiting": 0.6, "inference/useful": 0.4},
    ),
    "trainer": (
        BUSY,
        {"useful": 400, "waiting": 600},
        ["spec.trainer.replicas", "spec.trainer.seqLen", "spec.inference.replicas"],
        {"trainer/useful": 0.9, "inference/waiting": 0.6, "inference/useful": 0.4},
    ),
    "stale": (
        BUSY,
        {"useful": 600, "stale": 400},
        ["spec.algorithm.maxStaleness", "spec.algorithm.oversampling"],
        {"trainer/useful": 0.9, "inference/stale": 0.4, "inference/useful": 0.6},
    ),
    "filtered": (
        {"useful": 500, "waiting": 500},
        {"useful": 300, "filtered": 500, "waiting": 200},
        ["spec.environments.train[].args", "spec.algorithm.groupSize", "spec.algorithm.filters"],
        {"trainer/waiting": 0.5, "inference/filtered": 0.5, "inference/useful": 0.3},
    ),
    "failed": (
        {"useful": 500, "waiting": 500},
        {"useful": 700, "failed": 300},
        ["spec.environments.train[].episodeTimeout"],
        {"trainer/waiting": 0.5, "inference/failed": 0.3, "inference/useful": 0.7},
    ),
    "evals": (
        {"useful": 500, "waiting": 500},
        {"useful": 700, "evaluating": 300},
        ["spec.environments.eval[].interval", "spec.environments.eval[].numExamples"],
        {"trainer/waiting": 0.5, "inference/evaluating": 0.3, "inference/useful": 0.7},
    ),
    "restarts": (
        {"useful": 500, "redone": 200, "restarting": 100, "waiting": 200},
        {"useful": 1000},
        ["spec.checkpoint.interval"],
        {"trainer/redone+restarting": 0.3, "trainer/useful": 0.5},
    ),
    "publishing": (
        {"useful": 700, "publishing": 300},
        {"useful": 1000},
        ["spec.weightTransfer.mode", "spec.weightTransfer.delta"],
        {"trainer/publishing": 0.3, "trainer/useful": 0.7},
    ),
    "saving": (
        {"useful": 700, "saving": 300},
        {"useful": 1000},
        ["spec.checkpoint.interval", "spec.checkpoint.asyncSave"],
        {"trainer/saving": 0.3, "trainer/useful": 0.7},
    ),
    "starting": (
        {"useful": 100, "starting": 900},
        {"starting": 1000},
        [],
        {"trainer/starting": 0.9, "trainer/useful": 0.1},
    ),
    "nothing": (
        BUSY,
        {"useful": 900, "stale": 100},
        ["spec.trainer.replicas", "spec.inference.replicas"],
        {"trainer/useful": 0.9, "inference/useful": 0.9},
    ),
    "unknown": ({"starting": 500, "waiting": 500}, {"useful": 1000}, [], {}),
}


def account(trainer: dict[str, Any], engines: dict[str, Any]) -> dict[str, float]:
    told = {f"trainer/{state}": seconds for state, seconds in trainer.items()}
    return told | {f"inference/{state}": seconds for state, seconds in engines.items()}


def fields(sentence: str) -> list[str]:
    return re.findall(r"spec\.[A-Za-z.\[\]]*[A-Za-z\]]", sentence)


@pytest.mark.parametrize("cause", CASES)
def test_a_bottleneck_is_named_with_its_fields_and_shares(cause: str) -> None:
    trainer, engines, moved, shares = CASES[cause]
    noise = {"usefulPercent": 1, "tokens/stale": 9, "trainer/undecided": 99999, "inference/later": 99999}
    found = slowness(account(trainer, engines) | noise)
    assert (found.cause, fields(found.sentence)) == (cause, moved)
    assert {f"{share.role}/{share.state}": share.part for share in found.shares} == pytest.approx(shares)


def test_every_field_that_is_named_is_one_of_the_manifest() -> None:
    crd = yaml.safe_load((Path(__file__).parents[4] / "crds/echorlruns.yaml").read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path in sorted({field for _, _, moved, _ in CASES.values() for field in moved}):
        schema = root
        for part in path.split("."):
            schema = schema["properties"][part.removesuffix("[]")]
            schema = schema["items"] if part.endswith("[]") else schema


def test_thresholds() -> None:
    less = round(1000 * NOTICEABLE) - 1
    assert slowness(account({"useful": 1000 - less, "saving": less}, {"useful": 1})).cause == "nothing"
    assert slowness(account({"useful": 999 - less, "saving": less + 1}, {"useful": 1})).cause == "saving"
    assert slowness(account({"useful": ENOUGH_S - 2}, {"useful": 1})).cause == "unknown"
    assert slowness(account({"useful": ENOUGH_S - 1}, {"useful": 1})).cause == "nothing"
    assert slowness({}).cause == "unknown"


def test_where_nothing_is_sampled_batches_come_from_the_environments() -> None:
    found = slowness(account({"useful": 300, "waiting": 700}, {}))
    assert (found.cause, [share.role for share in found.shares]) == ("environments", ["trainer"])


def why(*arguments: object) -> Any:
    return CliRunner().invoke(app_for(["why"]), ["why", *map(str, arguments)], prog_name="echorl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a run in its second attempt; its orchestrators kept the accounts."""
    (tmp_path / "run.json").write_text('{"uid": "u", "name": "one"}')
    for attempt, step_s in ((1, 999.0), (2, 75.0)):
        ledger = Ledger(None, now=0.0, attempt=attempt, ranks=1, gpus_per_engine=1)
        ledger.engine(0.0, "engine", None)
        request = ledger.asked(0.0, "engine", "episode")
        ledger.answered(300.0, request, lost=False)
        ledger.sealed(1, {"episode"})
        ledger.step(300.0, 1, {"step": 300.0, "wait_batch": 300.0 - min(300.0, step_s)})
        (tmp_path / f"records/attempt_{attempt}").mkdir(parents=True)
        (tmp_path / f"attempts/{attempt}").mkdir(parents=True)
        (tmp_path / f"attempts/{attempt}" / NAME).write_bytes(msgspec.json.encode(ledger.saved(300.0)))
    return tmp_path


def test_a_run_s_folder(folder: Path) -> None:
    told = why(folder, "--slow")
    assert (told.exit_code, told.stderr) == (0, "")
    first, *shares = told.stdout.splitlines()
    assert first.startswith("one: the engines are the bottleneck, the trainer waits for batches: more spec.inference")
    assert shares == ["  trainer waiting: 75% of 5 min", "  inference useful: 100% of 5 min"]
    answer = json.loads(why(folder, "--slow", "-o", "json").stdout)
    assert (answer["cause"], answer["shares"]) == ("engines", {"trainer/waiting": 0.75, "inference/useful": 1.0})


def test_a_run_without_figures_is_told_so(folder: Path) -> None:
    for file in folder.glob("attempts/*/goodput.json"):
        file.unlink()
    told = why(folder, "--slow")
    wanted = "one: too little is measured yet to say what is slow: it takes a trained step and 120 s of GPU time\n"
    assert (told.exit_code, told.stdout) == (0, wanted)


@pytest.mark.parametrize(
    ("content", "says"), [("[", "found no JSON"), ('{"seconds": 3}', "found no account of time"), ("", "found no JSON")]
)
def test_a_damaged_account_is_named(folder: Path, content: str, says: str) -> None:
    (folder / "attempts/2/goodput.json").write_text(content)
    told = why(folder, "--slow")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith(f"{folder / 'attempts/2/goodput.json'}: {says}; accepted: ")


def test_what_is_no_run_s_folder_is_refused(tmp_path: Path) -> None:
    other = why(tmp_path, "--slow")
    accepted = "accepted: the directory of a run\n"
    assert (other.exit_code, other.stderr) == (2, f"{tmp_path}: found no run.json; {accepted}")
    missing, unasked = why(tmp_path / "none", "--slow"), why(tmp_path)
    assert (missing.exit_code, unasked.exit_code) == (2, 2)
    assert "found nothing at" in missing.stderr
    assert "RUN: found a path" in unasked.stderr
