import os
import time
from pathlib import Path

import pytest

from echorl_cli.manifest_file import InvalidManifest, read_manifest
from echorl_cli.yaml_text import YamlProblem, parse_yaml

SHORTEST = """\
apiVersion: echorl.dev/v1alpha1
kind: EchoRLRun
metadata: {name: shortest}
spec:
  model: {name: tiny}
  environments:
    train:
      - {name: digits, type: "builtin:digits"}
"""


def problem_of(text):
    with pytest.raises(YamlProblem) as caught:
        parse_yaml(text)
    return caught.value.problem


def test_duplicate_keys_are_refused_with_their_place():
    problem = problem_of("spec:\n  model: {name: a}\n  seed: 1\n  model: {name: b}\n")
    assert problem.path == "line 4, column 3"
    assert "'model' a second time" in problem.found
    assert problem.accepted == "each key once"


def test_merge_keys_do_not_count_as_duplicates():
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: {<<: *a, y: 4}\n")["b"] == {"x": 3, "y": 2}


def test_several_documents_are_refused():
    problem = problem_of("a: 1\n---\nb: 2\n")
    assert problem.path == "line 2, column 1"
    assert problem.accepted == "one document per file"


@pytest.mark.parametrize("text", ["a: [1, 2", "a: b: c", "\t- x", "a: *nowhere", "a: !!python/object:os.system x", "%"])
def test_bad_syntax_has_a_place(text):
    assert problem_of(text).path.startswith("line ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: !!set {x}", "the tag !!set"),
        ("a: !!bool maybe", "!!bool 'maybe'"),
        ("a: !!timestamp 2024-01-01", "the tag !!timestamp"),
        ("a: !!int x", "!!int 'x'"),
        ("a: !mine x", "the tag !mine"),
        ("[b, c]: x", "a list as a key"),
        ("{b: c}: x", "a mapping as a key"),
        ("a: &a [*a]", "values that contain themselves"),
        ("a: &a {b: {c: *a}}", "values that contain themselves"),
        (f"a: {'1' * 400}", "a whole number of 400 characters"),
        (f"a: {'1' * 10_000}.5", "a number of 10,002 characters"),
        ("a: {<<: 3}", "something else than mappings to merge"),
        ("%TAG ! a\n" * 10 + "---\na: 1", "more than 8 directives"),
        ("a: \x01", "control characters are not allowed"),
    ],
)
def test_what_no_manifest_holds_is_named(text, found):
    assert found in problem_of(text).found


def test_aliases_that_multiply_are_refused_at_once():
    # 12 levels of 9 references each, in less than 600 bytes.
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    text = "\n".join(lines)
    assert len(text) < 600
    begun = time.process_time()
    assert "more than 100,000 values" in problem_of(text).found
    assert time.process_time() - begun < 5


def test_a_reference_is_the_value_itself():
    assert parse_yaml("a: &a {x: [1]}\nb: *a\nc: [*a, 2]\n") == {"a": {"x": [1]}, "b": {"x": [1]}, "c": [{"x": [1]}, 2]}
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: [{x: 5}, *a], z: 3}\n")["b"] == {"x": 5, "y": 2, "z": 3}


@pytest.mark.parametrize("text", ["a: !!str 3", "a: ! 3", "a: '3'"])
def test_a_text_is_a_text(text):
    assert parse_yaml(text) == {"a": "3"}


def test_ten_megabytes_are_read_in_seconds(tmp_path):
    file = tmp_path / "run.yaml"
    rows = "".join(f"- {{name: x{n}, v: [1, 2, {n}], s: t}}\n" for n in range(300_000))
    for text in (f"spec:\n{rows}", f"spec: '{'x' * 10_000_000}'", f"{SHORTEST}#{'x' * 10_000_000}"):
        assert len(text) > 10_000_000
        file.write_text(text)
        begun = time.process_time()
        if text.startswith("api"):
            read_manifest(file)
        else:
            with pytest.raises(InvalidManifest):
                read_manifest(file)
        assert time.process_time() - begun < 20


def test_a_file_without_end_and_a_pipe_without_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, found in (
        (Path("/dev/zero"), "more than 16,000,000 bytes"),
        (tmp_path / "pipe", "null"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(InvalidManifest) as caught:
            read_manifest(path)
        assert found in str(caught.value)


@pytest.mark.parametrize("text", ["1: x", "on: x", "~: x", "1.5: x", "[a]: x"])
def test_keys_are_text(text):
    problem = problem_of(text)
    assert (problem.path, problem.accepted) == ("line 1, column 1", "text")


def test_nesting_without_end_is_refused():
    assert "nested" in problem_of("[" * 5000).found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("1E3", 1000.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("-3", -3),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("012", "012"),
        ("10m", "10m"),
        ("=", "="),
        ("true", True),
        ("null", None),
        ("", None),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        ("-", [None]),
    ],
)
def test_scalars(text, value):
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


def test_manifest_is_read_with_overrides(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(SHORTEST)
    run = read_manifest(file, ["maxSteps=3", "spec.seed=7"])
    assert (run.spec.max_steps, run.spec.seed, run.metadata.name) == (3, 7, "shortest")


@pytest.mark.parametrize("alpha", [".nan", ".inf", "-.inf"])
def test_alpha_must_be_finite(tmp_path, alpha):
    file = tmp_path / "run.yaml"
    file.write_text(SHORTEST)
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(file, [f"environments.train[0].echo.tool.alpha={alpha}"])
    (problem,) = caught.value.problems
    assert problem.path == "spec.environments.train[0].echo.tool.alpha"


def test_problems_of_overrides_and_manifest_come_together(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(SHORTEST)
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(file, ["maxStep=3", "seed=x"])
    assert [problem.path for problem in caught.value.problems] == ["spec.maxStep", "spec.seed"]
    assert all(line.startswith(f"{file}: spec.") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("content", "accepted"),
    [(None, "a readable YAML file"), (b"\xff\xfe", "UTF-8 text"), (b"a: [", "YAML"), (b"", "a mapping with the keys")],
)
def test_files_that_hold_no_manifest(tmp_path, content, accepted):
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidManifest) as caught:
        read_manifest(file, ["maxSteps=3"])
    (problem,) = caught.value.problems
    assert problem.accepted.startswith(accepted)


def test_a_folder_is_no_manifest(tmp_path):
    with pytest.raises(InvalidManifest, match="directory"):
        read_manifest(tmp_path)
