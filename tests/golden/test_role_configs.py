"""Each ``NAME.yaml`` compiles to ``NAME.json``. ``ECHORL_UPDATE_GOLDEN=1`` writes the JSON files anew."""

import os
from pathlib import Path

import pytest

from echorl_cli.manifest_file import read_manifest
from echorl_core.config import InferenceConfig, OrchestratorConfig, RoleConfigs, TrainerConfig
from echorl_manifest.compile.placement import example_placement
from echorl_manifest.compile.role_configs import role_configs

MANIFESTS = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_compiles_to_golden_configs(manifest):
    run = read_manifest(manifest)
    text = role_configs(run, example_placement(run)).model_dump_json(indent=2) + "\n"
    golden = manifest.with_suffix(".json")
    if os.environ.get("ECHORL_UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_every_role_can_load_its_config(manifest, tmp_path):
    run = read_manifest(manifest)
    configs = role_configs(run, example_placement(run))
    assert RoleConfigs.model_validate_json(configs.model_dump_json()) == configs
    for config, kind in (
        (configs.orchestrator, OrchestratorConfig),
        (configs.trainer, TrainerConfig),
        *((engine, InferenceConfig) for engine in configs.inference),
    ):
        config.dump(tmp_path / "config.json")
        assert kind.load(tmp_path / "config.json") == config
