import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echorl_core.names import ExitCode
from echorl_core.termination_message import (
    LARGEST,
    Preparation,
    SavedCheckpoint,
    SkippedCheckpoint,
    TerminationMessage,
    code_name,
    encoded,
    message_of_end,
    read,
    without_secrets,
    write,
)

TEXT = st.text(max_size=6000)


def test_words_come_back_as_they_were_said(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("what was there before, which is longer than the words that follow " * 100)
    words = message_of_end("trainer", ExitCode.NON_FINITE, "loss is NaN", attempt=3, step=17, rank=1)
    write(words, {"ECHORL_TERMINATION_LOG": str(file)})
    assert read(file.read_bytes()) == words
    assert json.loads(file.read_text())["exit_name"] == "NON_FINITE"


def test_nothing_is_written_where_nobody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(message_of_end("trainer", 0, "finished"), {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_does_not_hide_the_end(tmp_path: Path) -> None:
    write(message_of_end("trainer", 0, "finished"), {"ECHORL_TERMINATION_LOG": str(tmp_path)})


def test_an_unexpected_error_brings_the_end_of_its_traceback() -> None:
    def deep(level: int) -> None:
        if level == 0:
            raise ValueError("the cause")
        deep(level - 1)

    with pytest.raises(ValueError, match="the cause") as caught:
        deep(80)
    words = read(encoded(message_of_end("orchestrator", 1, "ValueError: the cause", error=caught.value), {}))
    assert words is not None
    assert words.traceback.endswith("ValueError: the cause\n")
    assert len(words.traceback) <= 1500


@pytest.mark.parametrize(
    ("code", "name"),
    [(0, "OK"), (8, "NOTHING_TO_TRAIN"), (143, "SIGTERM"), (-9, "SIGKILL"), (137, "SIGKILL"), (99, "UNKNOWN")],
)
def test_names_of_codes(code: int, name: str) -> None:
    assert code_name(code) == name


@pytest.mark.parametrize(
    "text",
    [
        "cannot log in with s3cr3t-value",
        "cannot fetch https://user:s3cr3t-value@hub/x",
        "header Bearer s3cr3t-value was refused",
        "token hf_s3cr3t_valueABCDEFGHIJ is wrong",
    ],
)
def test_secrets_are_struck_out(text: str) -> None:
    environ = {"ECHORL_ADMIN_TOKEN": "s3cr3t-value", "OPENAI_API_KEY": "other-key", "HOME": "cannot"}
    found = without_secrets(text, environ)
    assert "s3cr3t" not in found
    assert found.startswith(text.split(maxsplit=1)[0]), "only secrets are struck out"
    words = read(encoded(message_of_end("prepare", 2, text), environ))
    assert words is not None
    assert "s3cr3t" not in words.message


def test_secrets_that_are_part_of_each_other() -> None:
    assert without_secrets("abcdefgh abcd", {"A_TOKEN": "abcd", "B_TOKEN": "abcdefgh"}) == "*** ***"


@pytest.mark.parametrize(
    "text", ["", "OOMKilled", '{"role": 3}', '{"role": "trainer"}', "[]", '{"x": ' + "[" * 2000 + "]" * 2000 + "}"]
)
def test_a_message_of_another_form_is_none(text: str) -> None:
    assert read(text) is None


def test_fields_of_a_later_version_are_no_trouble() -> None:
    words = message_of_end("trainer", 0, "finished")
    later = {**json.loads(encoded(words, {})), "mood": "good"}
    assert read(json.dumps(later)) == words


@given(TEXT, TEXT, st.lists(TEXT, max_size=30), st.lists(TEXT, max_size=30), st.text(max_size=5000))
def test_it_never_exceeds_what_the_kubelet_takes(
    message: str, trace: str, removed: list[str], reasons: list[str], path: str
) -> None:
    prepared = Preparation(
        resume_step=4,
        committed=[
            SavedCheckpoint(step=step, committed_at="2026-01-01T00:00:00+00:00", size_bytes=2**40) for step in range(9)
        ],
        skipped=[SkippedCheckpoint(step=step, reason=reason) for step, reason in enumerate(reasons)],
        removed=removed,
        removed_count=len(removed),
        model_path=path,
    )
    words = msgspec.structs.replace(message_of_end("prepare", 0, message), traceback=trace, prepared=prepared)
    data = encoded(words, {})
    assert len(data) <= LARGEST
    found = read(data)
    assert isinstance(found, TerminationMessage)
    assert (found.role, found.exit_code) == ("prepare", 0)
    if len(path.encode()) < 500 and found.prepared is not None:
        assert (found.prepared.resume_step, found.prepared.removed_count) == (4, len(removed))


def test_what_prepare_did_outlives_long_lists() -> None:
    prepared = Preparation(
        resume_step=40,
        committed=[SavedCheckpoint(step=40, committed_at="2026-01-01T00:00:00+00:00", size_bytes=1)],
        skipped=[SkippedCheckpoint(step=step, reason="x" * 900) for step in range(20)],
        skipped_count=20,
        removed=["y" * 900] * 20,
        removed_count=20,
        model_path="/run/models/m",
    )
    words = msgspec.structs.replace(message_of_end("prepare", 0, "resuming from step 40"), prepared=prepared)
    found = read(encoded(words, {}))
    assert found is not None
    assert found.prepared is not None
    assert found.message == "resuming from step 40"
    assert found.prepared.committed == prepared.committed
    assert (found.prepared.removed_count, found.prepared.skipped_count) == (20, 20)
    assert found.prepared.removed
    assert found.prepared.skipped
