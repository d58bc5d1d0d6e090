"""The commands as a user calls them: output, exit codes, and a start without heavy imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from echorl_cli.__main__ import COMMANDS, app_for
from echorl_cli.manifest_file import manifest_text
from echorl_core import __version__
from echorl_core.config import RoleConfigs
from echorl_manifest import load
from echorl_operator.children import overlay_problems
from echorl_testing.manifests.documents import full, shortest, with_value
from echorl_testing.operator import pod_templates


def call(*arguments):
    arguments = [str(argument) for argument in arguments]
    return CliRunner().invoke(app_for(arguments), arguments, prog_name="echorl")


@pytest.fixture
def manifest(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(manifest_text(load(full())))
    return file


def test_valid_manifest(manifest):
    result = call("validate", manifest)
    assert (result.exit_code, result.stdout) == (0, f"{manifest}: valid, run full\n")


def test_what_only_a_cluster_does_is_valid_with_a_notice_and_refused_by_run(manifest):
    override = ("--set", "suspend=true")
    valid = call("validate", manifest, *override)
    assert (valid.exit_code, valid.stdout) == (0, f"{manifest}: valid, run full\n")
    assert valid.stderr == "spec.suspend: works in a cluster, and is refused by `echorl run`\n"
    refused = call("run", manifest, *override)
    assert refused.exit_code == 2
    assert "spec.suspend: not supported yet: suspended runs; found true; accepted: false" in refused.stderr


@pytest.mark.parametrize("name", [name for name in pod_templates.REFUSED if name != "gates"])
def test_templates_are_refused_in_the_operators_words(name, tmp_path):
    template = pod_templates.REFUSED[name]
    document = with_value(shortest(), "spec.inference.template", template)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(document))
    result = call("validate", file)
    expected = overlay_problems(template, "spec.inference.template")
    assert expected
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [*(f"{file}: {one}" for one in expected), f"{file}: {len(expected)} problem"]


def test_egress_rules_are_looked_at(manifest):
    result = call("validate", manifest, "--set", "egress=[{form: []}]")
    assert result.exit_code == 2
    assert "spec.egress[0].form: no part of an egress rule; found an empty list; accepted: to or ports" in result.stderr


def test_what_a_machine_takes_and_a_cluster_refuses_is_valid_with_a_notice(manifest):
    result = call("validate", manifest, "--set", "model.name=~/model", "--set", "model.revision=null")
    assert (result.exit_code, result.stdout) == (0, f"{manifest}: valid, run full\n")
    assert 'spec.model.name: it does not lead to the run\'s volume; found "~/model"; accepted: ' in result.stderr
    assert "(in a cluster with default settings)" in result.stderr


def test_every_problem_is_printed(manifest):
    result = call("validate", manifest, "--set", "maxSteps=-1", "--set", "algorithm.batchSize=9", "--set", "seeds=1")
    assert result.exit_code == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert [line.removeprefix(f"{manifest}: ").split(":")[0] for line in lines] == [
        "spec.seeds",
        "spec.maxSteps",
        "spec.algorithm.batchSize",
        "3 problems",
    ]


def test_render_prints_what_the_roles_can_load(manifest):
    as_yaml = call("render", manifest)
    as_json = call("render", manifest, "--format", "json", "--set", "maxSteps=3")
    assert (as_yaml.exit_code, as_json.exit_code) == (0, 0)
    configs = RoleConfigs.model_validate(yaml.safe_load(as_yaml.stdout), strict=False)
    assert configs.orchestrator.max_steps == 300
    assert RoleConfigs.model_validate(json.loads(as_json.stdout), strict=False).trainer.max_steps == 3


def test_render_of_an_invalid_manifest(manifest):
    result = call("render", manifest, "--set", "maxSteps=-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "spec.maxSteps: found -1" in result.stderr


def test_missing_file():
    result = call("validate", "nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml: file: found No such file or directory" in result.stderr


def test_version():
    assert call("--version").stdout == f"echorl {__version__}\n"


def test_help_lists_every_command():
    help_text = call("--help").stdout
    assert all(name in help_text for name in COMMANDS)


def test_start_is_light():
    code = (
        "import sys, echorl_cli.__main__ as m; m.app_for(['validate', 'x']);"
        "heavy = {'torch', 'kopf', 'kubernetes', 'aiohttp', 'matplotlib', 'numpy', 'transformers'} & set(sys.modules);"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr


def test_module_is_the_command(manifest):
    result = subprocess.run(
        [sys.executable, "-m", "echorl_cli", "validate", str(manifest), "--set", "maxSteps=x"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


def test_an_adapter_is_worth_a_preflight():
    file = Path(__file__).parents[3] / "examples" / "lora.yaml"
    result = call("validate", file)
    assert result.exit_code == 0
    assert f"`echorl preflight {file}` tries the adapter" in result.stderr
