import json
from pathlib import Path

import pytest

from echorl_cli.records import read_records
from echorl_cli.report import write_report


def step(number: int, attempt: int, reward: float, **more: object) -> dict[str, object]:
    return {
        "step": number,
        "attempt": attempt,
        "reward/all/mean": reward,
        "env_nll/all": 5.0 - number / 10,
        "gap/max_abs": 1e-5 * number,
        "gap/tokens": 100,
        "staleness/all/max": number % 2,
        "tokens/sampled": 40,
        "tokens/trained": 60,
        **more,
    }


def write(root: Path, attempt: int, name: str, rows: list[dict[str, object]], tail: str = "") -> None:
    folder = root / "records" / f"attempt_{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text(json.dumps({"uid": "u", "name": "demo <b>"}))
    write(tmp_path, 1, "steps", [step(n, 1, 0.1) for n in range(1, 9)], tail='{"step": 9, "att')
    write(tmp_path, 2, "steps", [step(n, 2, 0.9) for n in range(6, 13)])
    write(
        tmp_path,
        2,
        "evals",
        [{"step": s, "attempt": 2, "environment": "held", "reward": s / 12, "env_nll": 3.0} for s in (6, 12)],
    )
    write(tmp_path, 2, "updates", [{"version": v, "pause_s": 0.05 * v, "engine": "e"} for v in (6, 7)])
    write(
        tmp_path,
        2,
        "episodes",
        [
            {
                "step": 7,
                "attempt": 2,
                "episode": "ep-1",
                "environment": "terminal",
                "task_key": 3,
                "reward": 1.0,
                "advantage": None,
                "version_low": 6,
                "version_high": 6,
                "messages": [{"role": "user", "content": "<script>alert(1)</script>"}],
                "turns": [{"start_s": 0.0, "end_s": 0.5, "tool_s": 0.1, "tokens": 12, "aborted": False}],
            }
        ],
    )
    return tmp_path


def test_redone_steps_supersede_those_of_the_earlier_attempt(run: Path) -> None:
    steps = read_records(run).steps
    assert [(row["step"], row["attempt"]) for row in steps] == [(n, 1) for n in range(1, 6)] + [
        (n, 2) for n in range(6, 13)
    ]


def test_report_holds_the_figures_worked_out_by_hand(run: Path) -> None:
    page = write_report(run)
    figures = json.loads((run / "report.json").read_text())
    assert figures["steps"] == 12
    assert figures["reward_first5"] == pytest.approx(0.1)
    assert figures["reward_last5"] == pytest.approx(0.9)
    assert figures["env_nll_first5"] == pytest.approx(4.7)  # mean of 4.9, 4.8, 4.7, 4.6, 4.5
    assert figures["env_nll_last5"] == pytest.approx(4.0)  # mean of 4.2 .. 3.8
    assert figures["max_logprob_gap"] == pytest.approx(12e-5)
    assert figures["logprob_gap_tokens"] == 1200
    assert figures["max_staleness"] == 1
    assert figures["policy_versions"] == [6, 7]
    assert figures["max_pause_s"] == pytest.approx(0.35)
    assert figures["eval"]["held"]["reward"] == [0.5, 1.0]
    text = page.read_text()
    assert text.count("<svg") == 8
    assert "<script>" not in text
    assert "demo &lt;b&gt;" in text


def test_exports_of_the_weights_that_are_there_are_listed(run: Path) -> None:
    assert "exports" not in write_report(run).read_text()
    for name in ("step_000010", "step_000005", ".tmp-step_000015"):
        (run / "exports" / name).mkdir(parents=True)
    assert "exports/step_000005, exports/step_000010<" in write_report(run).read_text()
    assert json.loads((run / "report.json").read_text())["exports"] == ["exports/step_000005", "exports/step_000010"]


def test_skipped_evals_are_named_and_supersede_nothing(run: Path) -> None:
    lost = {"environment": "held", "skipped": "its version is gone"}
    scores = {"attempt": 1, "environment": "held", "reward": 0.25, "env_nll": 3.0}
    skipped = [{**lost, "step": 0, "attempt": 1}, {**lost, "step": 0, "attempt": 2}, {**lost, "step": 6, "attempt": 1}]
    write(run, 1, "evals", [{**scores, "step": 3}])
    write(run, 3, "evals", skipped)
    text = write_report(run).read_text()
    figures = json.loads((run / "report.json").read_text())
    assert figures["eval"]["held"]["step"] == [3, 6, 12]
    assert figures["evals_skipped"] == ["held at step 0"]
    assert "held at step 0" in text


def test_a_filtered_episode_is_told_as_such(run: Path) -> None:
    assert "kept out of the batch" not in write_report(run).read_text()
    [row] = read_records(run).episodes
    write(run, 2, "episodes", [{**row, "filters": ["gibberish", "mine:poor"], "in_batch": False}])
    assert (
        "reward 1.0 · filters gibberish, mine:poor · kept out of the batch · versions 6-6"
        in write_report(run).read_text()
    )


def test_a_run_without_steps_gets_a_report_too(tmp_path: Path) -> None:
    page = write_report(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["reward_first5"] is None
    assert "No episode was recorded" in page.read_text()


def prepared(root: Path, attempt: int, resume_step: int) -> None:
    folder = root / "attempts" / str(attempt)
    folder.mkdir(parents=True)
    (folder / "prepared.json").write_text(json.dumps({"attempt": attempt, "resume_step": resume_step}))


def test_an_attempt_starts_where_it_was_prepared_and_not_at_its_first_row(tmp_path: Path) -> None:
    prepared(tmp_path, 1, 0)
    prepared(tmp_path, 2, 4)
    scores = {"environment": "held", "reward": 0.5, "env_nll": 3.0}
    write(tmp_path, 1, "steps", [step(n, 1, 0.1) for n in range(1, 8)])
    write(tmp_path, 1, "evals", [{**scores, "attempt": 1, "step": n} for n in (2, 4, 6)])
    write(tmp_path, 2, "steps", [step(5, 2, 0.9)])
    # Due at the version that the attempt came up with, and lost by the one before.
    write(tmp_path, 2, "evals", [{**scores, "attempt": 2, "step": 4, "environment": "other"}])
    records = read_records(tmp_path)
    found = [(row["environment"], row["step"], row["attempt"]) for row in records.evals]
    assert found == [("held", 2, 1), ("held", 4, 1), ("other", 4, 2)], "version 6 was thrown away, version 4 was not"
    assert [(row["step"], row["attempt"]) for row in records.steps] == [*((n, 1) for n in range(1, 5)), (5, 2)]


def test_another_runs_attempt_supersedes_nothing(run: Path) -> None:
    write(run, 3, "steps", [step(1, 3, 0.5)])
    (run / "attempts" / "3").mkdir(parents=True)
    (run / "attempts" / "3" / "prepared.json").write_text('{"run_uid": "another", "resume_step": 0}')
    found = [(row["step"], row["attempt"]) for row in read_records(run).steps]
    assert found == [*((n, 1) for n in range(1, 6)), *((n, 2) for n in range(6, 13))]
