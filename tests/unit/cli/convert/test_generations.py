"""Whole files of four generations against golden manifests."""

from pathlib import Path

import pytest
import yaml

from echorl_cli.convert.conversion import convert
from echorl_cli.convert.draft import Kind
from echorl_cli.convert.text import manifest_text
from echorl_manifest import problems

FILES = Path(__file__).parent / "files"


GENERATIONS = {
    "early": [FILES / "early.toml"],
    "three": [FILES / "three" / f"{role}.toml" for role in ("trainer", "orchestrator", "inference")],
    "newest": [FILES / "newest.toml"],
    "latest": [FILES / "latest.toml"],
}


def of(name):
    return convert([(None, file) for file in GENERATIONS[name]])


def lasting(text):
    """The text without what only today's EchoRL does not carry out."""
    return "".join(line for line in text.splitlines(keepends=True) if f": {Kind.NOT_SUPPORTED}: " not in line)


@pytest.mark.parametrize("name", GENERATIONS)
def test_golden_manifest(name):
    golden = FILES / f"{name}.yaml"
    assert lasting(manifest_text(of(name), GENERATIONS[name])) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GENERATIONS)
def test_all_that_is_refused_in_a_golden_manifest_is_not_supported_yet(name):
    document = yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))
    found = problems(document)
    assert all(problem.reason.startswith("not supported yet") for problem in found)
    told = [line.subject for line in of(name).lines if line.kind is Kind.NOT_SUPPORTED]
    assert sorted(told) == sorted(problem.path for problem in found)


def test_a_run_in_the_keys_of_three_generations_is_one_manifest():
    assert of("early").document == of("three").document == of("newest").document
    assert "made-up-and-kept-out" not in manifest_text(of("early"), [])
