"""Whole files of four generations and a file of supervised fine-tuning against golden manifests."""

from pathlib import Path

import pytest
import yaml

from echorl_cli.convert.conversion import Options, convert
from echorl_cli.convert.text import manifest_text
from echorl_manifest import problems
from echorl_testing.manifests.prime_rl import TYPES

FILES = Path(__file__).parent / "files"


GENERATIONS = {
    "early": [FILES / "early.toml"],
    "three": [FILES / "three" / f"{role}.toml" for role in ("trainer", "orchestrator", "inference")],
    "newest": [FILES / "newest.toml"],
    "latest": [FILES / "latest.toml"],
    "supervised": [FILES / "supervised.toml"],
}


def of(name):
    return convert([(None, file) for file in GENERATIONS[name]], Options(types=TYPES))


@pytest.mark.parametrize("name", GENERATIONS)
def test_golden_manifest(name):
    golden = FILES / f"{name}.yaml"
    assert manifest_text(of(name), GENERATIONS[name]) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GENERATIONS)
def test_a_golden_manifest_is_valid_as_it_is_written(name):
    assert problems(yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))) == []


def test_a_run_in_the_keys_of_three_generations_is_one_manifest():
    assert of("early").document == of("three").document == of("newest").document
    assert "made-up-and-kept-out" not in manifest_text(of("early"), [])
