"""``echorl report``, of a local run's directory and of one that was copied from a cluster's volume."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for


def call(*arguments):
    arguments = [str(argument) for argument in arguments]
    return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")


def rows(folder, name, *entries):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def step(number, attempt, reward):
    time = f"2026-01-31T1{attempt}:00:{number:02d}.000+00:00"
    return {"time": time, "step": number, "attempt": attempt, "reward/all/mean": reward}


@pytest.fixture
def volume(tmp_path):
    """A run's folder as it lies on a volume: two attempts, no state.json, a link to a model that was not copied."""
    root = tmp_path / "volume" / "runs" / "words"
    for attempt, resumed in ((1, 0), (3, 2)):
        folder = root / "attempts" / str(attempt)
        folder.mkdir(parents=True)
        (folder / "prepared.json").write_text(json.dumps({"attempt": attempt, "resume_step": resumed}))
    rows(root / "records" / "attempt_1", "steps", *(step(number, 1, 0.0) for number in (1, 2, 3)))
    rows(root / "records" / "attempt_3", "steps", *(step(number, 3, 1.0) for number in (3, 4)))
    (root / "run.json").write_text(json.dumps({"uid": "u", "name": "words-backwards", "created": "now"}))
    (root / ".model").symlink_to("/models/that-is-elsewhere")
    return root


def test_a_copied_run_has_its_figures_and_a_timeline_of_attempts(volume):
    result = call("report", volume)
    assert (result.exit_code, result.stdout) == (0, f"report: {volume / 'report.html'}\n")
    figures = json.loads((volume / "report.json").read_text())
    assert figures["steps"] == 4
    assert figures["reward_first5"] == 0.5  # 0, 0, 1, 1: step 3 was redone
    assert figures["restarts"] is None
    page = (volume / "report.html").read_text()
    assert "<h1>words-backwards</h1>" in page
    assert '<p class="sub">4 steps' in page
    assert "<tr><th>2026-01-31T11:00:01.000+00:00</th><td>Running</td><td>attempt 1</td><td>from the start</td>" in page
    assert "<td>attempt 3</td><td>from the checkpoint of step 2</td>" in page
    assert "<th>restarts</th><td>-</td>" in page


def test_a_local_run_shows_what_its_supervisor_noted(volume):
    (volume / "state.json").write_text(json.dumps({"phase": "Succeeded", "restarts": 2, "wall_s": 9.5}))
    call("report", volume)
    figures = json.loads((volume / "report.json").read_text())
    assert (figures["restarts"], figures["wall_s"]) == (2, 9.5)
    assert '<p class="sub">Succeeded · 4 steps' in (volume / "report.html").read_text()


def test_the_folder_names_a_run_without_identity(volume):
    (volume / "run.json").unlink()
    call("report", volume)
    assert "<h1>words</h1>" in (volume / "report.html").read_text()


def test_another_folder_leaves_the_run_untouched(volume, tmp_path):
    before = sorted(path.name for path in volume.iterdir())
    out = tmp_path / "new" / "report"
    result = call("report", volume, "--out", out)
    assert result.stdout == f"report: {out / 'report.html'}\n"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.json"]
    assert sorted(path.name for path in volume.iterdir()) == before


def test_reference_figures_of_the_model(volume, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "baselines.json").write_text(json.dumps({"unigram_nats": 2.5}))
    call("report", volume, "--model", model)
    assert json.loads((volume / "report.json").read_text())["baselines"] == {"unigram_nats": 2.5}
    (volume / ".model").unlink()
    shutil.copytree(model, volume / ".model")
    (volume / "report.json").unlink()
    call("report", volume)
    assert json.loads((volume / "report.json").read_text())["baselines"] == {"unigram_nats": 2.5}


def refusal(*arguments):
    result = call("report", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    return result.stderr


def test_a_model_without_reference_figures(volume, tmp_path):
    assert refusal(volume, "--model", tmp_path) == (
        f"--model: found no baselines.json in {tmp_path}; accepted: the folder of a model that has one\n"
    )


def test_a_folder_that_is_no_run(tmp_path):
    assert refusal(tmp_path) == (
        f"{tmp_path}: found no records; accepted: the directory of a run that has trained or evaluated\n"
    )


@pytest.mark.parametrize("line", ["\x00\x00\x00", "[1, 2]", '{"step": 1', '{"step": 1}'])
def test_a_record_that_was_not_copied_whole_is_named(volume, line):
    path = volume / "records" / "attempt_3" / "steps.jsonl"
    path.write_text(path.read_text() + line + "\n")
    accepted = "accepted: records as the orchestrator wrote them"
    assert refusal(volume) == f"{path}: found no record in line 3; {accepted}\n"
    assert not (volume / "report.html").exists()


def test_a_last_line_that_was_cut_is_left_out(volume):
    path = volume / "records" / "attempt_3" / "steps.jsonl"
    path.write_text(path.read_text() + '{"step": 5, "att')
    call("report", volume)
    assert json.loads((volume / "report.json").read_text())["steps"] == 4


def test_an_identity_that_is_no_json_is_named(volume):
    (volume / "run.json").write_text("{")
    path = volume / "run.json"
    assert refusal(volume) == f"{path}: found no JSON; accepted: records as the orchestrator wrote them\n"


def test_a_folder_that_cannot_be_written(volume, tmp_path):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert (
        refusal(volume, "--out", out)
        == f"--out: found {out}: Not a directory; accepted: a folder that can be written\n"
    )


def test_an_attempt_of_another_run_is_left_out(volume):
    for attempt, uid in ((1, "another"), (3, "u")):
        file = volume / "attempts" / str(attempt) / "prepared.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "run_uid": uid}))
    assert call("report", volume).exit_code == 0
    figures = json.loads((volume / "report.json").read_text())
    assert (figures["steps"], figures["reward_first5"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("episodes", {"step": 1, "attempt": 1, "turns": 3}),
        ("episodes", {"step": 1, "attempt": 1, "messages": [[]]}),
        ("steps", {"step": 10**400, "attempt": 1}),
        ("evals", {"step": 1, "attempt": "1"}),
    ],
)
def test_records_of_other_types_are_damaged(volume, table, row):
    rows(volume / "records" / "attempt_1", table, row)
    said = refusal(volume)
    assert said.startswith(f"{volume / 'records' / 'attempt_1' / table}.jsonl: found ")
    assert "in line 1; accepted: records as the orchestrator wrote them" in said


def test_a_timeline_of_another_type_is_damaged(volume):
    (volume / "state.json").write_text(json.dumps({"phase": "Failed", "timeline": 7}))
    assert "found a timeline that is no list of mappings" in refusal(volume)
