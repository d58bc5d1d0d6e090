"""Files of a run as one tree: order, merging, roles, and what cannot be read."""

import pytest

from echorl_cli.convert.layers import laid_over, read_layers
from echorl_cli.convert.problem import ConversionError


def files(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return [(None, tmp_path / f"{name}.toml") for name in texts]


def test_tables_merge_and_later_files_win(tmp_path):
    layers = files(
        tmp_path,
        base="max_steps = 10\n[trainer.optim]\nlr = 1e-6\nweight_decay = 0.1",
        over="max_steps = 20\n[trainer.optim]\nlr = 2e-6",
    )
    assert read_layers(layers) == {"max_steps": 20, "trainer": {"optim": {"lr": 2e-6, "weight_decay": 0.1}}}
    assert read_layers(layers[::-1])["trainer"]["optim"]["lr"] == 1e-6


def test_lists_are_replaced_whole(tmp_path):
    layers = files(
        tmp_path,
        base='[[orchestrator.env]]\nid = "a"\nratio = 1\n[[orchestrator.env]]\nid = "b"',
        over='[[orchestrator.env]]\nid = "c"',
    )
    assert read_layers(layers) == {"orchestrator": {"env": [{"id": "c"}]}}


def test_a_value_takes_the_place_of_a_table_and_back():
    assert laid_over({"ckpt": {"interval": 5}}, {"ckpt": None}) == {"ckpt": None}
    assert laid_over({"ckpt": None}, {"ckpt": {"interval": 5}}) == {"ckpt": {"interval": 5}}


def test_the_text_none_is_null_wherever_it_stands(tmp_path):
    layers = files(tmp_path, rl='seq_len = "None"\n[trainer.optim]\nmax_norm = "None"\nlist = ["None", "none"]')
    assert read_layers(layers) == {"seq_len": None, "trainer": {"optim": {"max_norm": None, "list": [None, "none"]}}}


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("trainer", "trainer"),
        ("train", "trainer"),
        ("orchestrator", "orchestrator"),
        ("orch", "orchestrator"),
        ("inference", "inference"),
        ("infer", "inference"),
    ],
)
def test_the_files_of_a_role_are_known_by_name(tmp_path, name, section):
    assert read_layers(files(tmp_path, **{name: "x = 1"})) == {section: {"x": 1}}


def test_a_file_with_sections_is_of_the_whole_run_whatever_its_name(tmp_path):
    assert read_layers(files(tmp_path, trainer="max_steps = 3\n[trainer]\nx = 1")) == {
        "max_steps": 3,
        "trainer": {"x": 1},
    }


def test_a_section_can_be_given_for_any_file(tmp_path):
    [(_, path)] = files(tmp_path, mine="x = 1")
    assert read_layers([("inference", path)]) == {"inference": {"x": 1}}


def refusal(layers):
    with pytest.raises(ConversionError) as caught:
        read_layers(layers)
    return str(caught.value)


def test_no_file():
    assert refusal([]) == "FILE: found no file; accepted: the TOML files of a run, base first"


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "rl.toml"
    assert refusal([(None, path)]) == f"{path}: found No such file or directory; accepted: a readable TOML file"


def test_bad_toml_names_the_place_and_not_the_text(tmp_path):
    [(_, path)] = files(tmp_path, rl='api_key = "secret-text\n')
    message = refusal([(None, path)])
    assert message.startswith(f"{path}: found no TOML: ")
    assert "line 1" in message
    assert "secret-text" not in message


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "rl.toml"
    path.write_bytes(b"x = 1\n\xff")
    assert refusal([(None, path)]) == f"{path}: found byte 6 is no UTF-8; accepted: UTF-8 text"


def test_dates(tmp_path):
    [(_, path)] = files(tmp_path, rl="x = 2026-01-31")
    assert refusal([(None, path)]) == f"{path}: found the date or time 2026-01-31; accepted: text in quotes"


def test_json(tmp_path):
    path = tmp_path / "trainer.json"
    path.write_text("{}")
    expected = "a resolved configuration in JSON; accepted: the TOML that it was made from"
    assert refusal([(None, path)]) == f"{path}: found {expected}"
