"""``echorl tokens``: how each token was trained, in colours and in words, and what it says to other files."""

import msgspec
import pytest
from typer.testing import CliRunner

from echorl_cli.__main__ import app_for
from echorl_core.tokens import TrainedSequence


def sequence(sample="e1/0", advantage=0.5, advantage_of=None, **changes):
    columns = {
        "token_ids": [7, 8, 9, 10, 11],
        "texts": ["Hi", " go", " on", "\x1b]", "ok"],
        "role": ["context", "action", "action", "env_output", "env_output"],
        "engine_logprobs": [None, -1.0, -1.0, None, None],
        "trainer_logprobs": [None, -0.5, -1.0, -2.0, -2.0],
        "entropy": [None, 0.25, 0.75, 1.0, 1.0],
        "ratio": [None, 1.5, 1.0, None, None],
        "is_masked": [None, False, True, None, None],
        "is_masked_low": [None, False, False, None, None],
        "is_masked_high": [None, False, True, None, None],
        "advantage": advantage_of or [None, advantage, advantage, None, None],
        "rl_weight": [0.0, 1.0, 1.0, 0.0, 0.0],
        "ce_weight": [0.0, 0.0, 0.0, 0.05, 0.0],
        "version_low": [-1, 3, 3, -1, -1],
        "version_high": [-1, 3, 3, -1, -1],
        "temperature": [1.0] * 5,
    }
    place = {"run_uid": "u", "attempt": 1, "step": 4, "rank": 0, "sample_id": sample, "environment": "shell"}
    return TrainedSequence(**{**place, "mode": "rl", "denominators": {"rl": 2.0}, **columns, **changes})


def written(path, *lines):
    path.write_bytes(b"".join(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines))
    return str(path)


def shown(*arguments, code=0, **environment):
    result = CliRunner().invoke(app_for(["tokens"]), ["tokens", *arguments], env=environment)
    assert result.exit_code == code, result.output
    return result.output


def test_plain_view_by_hand(tmp_path):
    assert shown(written(tmp_path / "f", sequence()), "--plain").splitlines() == [
        "step 4, rank 0, shell, e1/0; 5 tokens; 2 by RL; 1 masked; 1 by ECHO; mean ratio 1.25; mean entropy 0.5",
        "  [context, not trained; 1] 'Hi'",
        "  [action, advantage +0.5; 1] ' go'",
        "  [action, advantage +0.5, masked high; 1] ' on'",
        "  [env_output, echo 0.05; 1] '\\x1b]'",
        "  [env_output, not trained; 1] 'ok'",
    ]


def test_a_token_of_alpha_0_does_not_look_like_context(tmp_path):
    mask = [False, False, False, True, True]
    found = shown(written(tmp_path / "f", sequence(ce_mask=mask, reward=0.25)), "--plain").splitlines()
    assert found[0].startswith("step 4, rank 0, shell, e1/0; reward 0.25; 5 tokens")
    assert found[-2:] == ["  [env_output, echo 0.05; 1] '\\x1b]'", "  [env_output, echo 0, not trained; 1] 'ok'"]


def test_colours_tell_sign_mask_and_echo(tmp_path):
    file = written(tmp_path / "f", sequence(), sequence("e2/0", -0.5))
    found = shown(file, FORCE_COLOR="1", COLUMNS="400", TERM="xterm-256color")
    assert "\x1b[32m go\x1b[0m" in found
    assert "\x1b[2;9;32m on\x1b[0m" in found
    assert "\x1b[31m go\x1b[0m" in found
    assert "\x1b[1;4;36m\\x1b]\x1b[0m" in found
    assert "\x1b[36mok\x1b[0m" in found
    assert found.count("masked by the loss") == 1


def distilled():
    """The teacher would rather have said the first token that the policy drew, and not the second."""
    return sequence(
        mode="opd",
        advantage_of=[None, 0.5, -1.5, None, None],
        teacher_logprobs=[None, 0.0, -2.5, None, None],
        is_masked_low=[None, False, True, None, None],
        is_masked_high=[None, False, False, None, None],
        ce_weight=[0.0] * 5,
    )


def taught():
    """A conversation that somebody gave: two targets of the assistant, one of a tool."""
    nothing = [None] * 5
    return sequence(
        mode="sft",
        advantage_of=nothing,
        role=["context", "context", "context", "env_output", "env_output"],
        tool=[None, None, None, "cat", "cat"],
        rl_weight=[0.0] * 5,
        ce_weight=[0.0, 1.0, 1.0, 1.0, 0.0],
        **dict.fromkeys(["engine_logprobs", "ratio", "is_masked", "is_masked_low", "is_masked_high"], nothing),
    )


def test_distillation_is_told_by_the_teachers_lead(tmp_path):
    assert shown(written(tmp_path / "f", distilled()), "--plain").splitlines() == [
        "step 4, rank 0, shell, e1/0; 5 tokens; 2 by distillation; 1 masked; "
        "mean lead -0.5; mean ratio 1.25; mean entropy 0.5",
        "  [context, not trained; 1] 'Hi'",
        "  [action, lead +0.5; 1] ' go'",
        "  [action, lead -1.5, masked low; 1] ' on'",
        "  [env_output, not trained; 2] '\\x1b]ok'",
    ]
    found = shown(str(tmp_path / "f"), FORCE_COLOR="1", COLUMNS="400", TERM="xterm-256color")
    assert "action, teacher's lead above 0" in found
    assert "ECHO" not in found
    assert "\x1b[32m go\x1b[0m\x1b[2;9;31m on\x1b[0m" in found


def test_supervised_training_is_told_by_its_targets(tmp_path):
    assert shown(written(tmp_path / "f", taught()), "--plain").splitlines() == [
        "step 4, rank 0, shell, e1/0; 5 tokens; 3 targets; mean logprob -1.167",
        "  [context, not trained; 1] 'Hi'",
        "  [context, target; 2] ' go on'",
        "  [env_output of cat, target; 1] '\\x1b]'",
        "  [env_output of cat, not trained; 1] 'ok'",
    ]
    found = shown(str(tmp_path / "f"), FORCE_COLOR="1", COLUMNS="400", TERM="xterm-256color")
    assert "\x1b[1;32mtarget\x1b[0m" in found
    assert "ECHO" not in found
    assert "\x1b[90mHi\x1b[0m\x1b[1;32m go on\x1b[0m\x1b[1;32m\\x1b]\x1b[0m\x1b[36mok\x1b[0m" in found


def test_a_tool_is_named_where_the_file_tells_it(tmp_path):
    file = written(tmp_path / "f", sequence(tool=[None, None, None, "bash", "bash"]))
    assert "  [env_output of bash, echo 0.05; 1]" in shown(file)


def test_a_pipe_gets_the_plain_view(tmp_path):
    assert "[context, not trained; 1]" in shown(written(tmp_path / "f", sequence()))


def test_without_texts_there_are_ids(tmp_path):
    assert "[action, advantage +0.5; 1] '<8>'" in shown(written(tmp_path / "f", sequence(texts=None)))


@pytest.mark.parametrize("wanted", ["e2", "e2/1"])
def test_one_episode(tmp_path, wanted):
    found = shown(written(tmp_path / "f", sequence("e1/0"), sequence("e2/1")), "--episode", wanted)
    assert "e2/1; 5 tokens" in found
    assert "e1/0" not in found


def test_an_unknown_episode_names_those_that_are_there(tmp_path):
    file = written(tmp_path / "f", sequence("e1/0"), sequence("e2/1"))
    assert "--episode: found 'e9', accepted: e1, e2" in shown(file, "--episode", "e9", code=2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no json\n", "line 2: no trained sequence; accepted: a file that tokenExport wrote"),
        (b'{"step": 3}\n', "line 2: no trained sequence"),
        (b"\xff\xfe\n", "line 2: no trained sequence"),
        (b'{"schema": "other", "schema_version": 1}\n', "schema: found 'other', accepted: 'echorl.tokens'"),
        (
            b'{"schema": "echorl.tokens", "schema_version": 3}\n',
            "schema_version: found 3, accepted: 2; a newer release of EchoRL wrote it",
        ),
        (
            b'{"schema": "echorl.tokens", "schema_version": 1}\n',
            "found 1, accepted: 2; an older release of EchoRL wrote it",
        ),
        (b'{"schema": "echorl.tokens", "schema_version": 2}\n', "missing required field `run_uid`"),
        (sequence(entropy=[0.1]), "entropy: found 1 values, accepted: 5, as many as token_ids"),
        (sequence(tool=["bash"]), "tool: found 1 values, accepted: 5"),
        (sequence(mode="dpo"), "Invalid enum value 'dpo'"),
        (sequence(role=["context"] * 4 + ["judge"]), "Invalid enum value 'judge'"),
    ],
)
def test_other_files_are_refused_by_line(tmp_path, line, message):
    found = shown(written(tmp_path / "f", sequence(), line), code=2)
    assert f"{tmp_path / 'f'}: line 2: " in found
    assert message in found


def test_an_empty_file_says_so(tmp_path):
    assert "no sequence was trained" in shown(written(tmp_path / "f"), code=2)


def test_names_reach_no_terminal_as_they_are(tmp_path):
    """A tool's name is the model's text: it neither ends a line nor sends the terminal a sequence."""
    odd = "sh\x1b]0;title\x07\nrm\u202e"
    file = written(tmp_path / "f", sequence(f"{odd}/0", tool=[None, None, None, odd, odd], environment=odd))
    coloured = {"FORCE_COLOR": "1", "COLUMNS": "400", "TERM": "xterm-256color"}
    for arguments, environment in ((["--plain"], {}), ([], {}), (["--plain"], coloured), ([], coloured)):
        found = shown(file, *arguments, **environment)
        assert not [part for part in ("\x1b]", "\x07", "\u202e", "\nrm") if part in found]
        assert r"sh\x1b]0;title\x07\x0arm\x202e" in found
