"""What a later attempt may not change, and what it may."""

from pathlib import Path
from typing import Any

import pytest

from echorl_core.config import OrchestratorConfig
from echorl_core.rundir import RunDirectory
from echorl_orchestrator.attempt.disk import read_disk
from echorl_orchestrator.attempt.fixed_settings import check_fixed, fixed_settings
from echorl_orchestrator.disk_room import DiskRoom
from echorl_orchestrator.failures import BadInputError
from echorl_testing.orchestrator.scripted_player import environment
from echorl_testing.orchestrator.scripted_policy import orchestrator_config
from echorl_testing.orchestrator.sealed import identity, prepared, seal_step, store_of


def config(**changed: Any) -> OrchestratorConfig:
    found = orchestrator_config(Path("model"), [environment("terminal"), environment("other")])
    return found.model_copy(update=changed)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"seed": 77}, r"spec\.seed: found '77', the run was started with '1'"),
        (
            {"train": [environment("terminal").model_copy(update={"type": "builtin:digits"})]},
            r"spec\.environments\.train\[terminal\]\.type: found 'builtin:digits', .* started with 'builtin:terminal'",
        ),
        (
            {"model": config().model.model_copy(update={"renderer": "qwen3", "dtype": "bfloat16"})},
            r"spec\.model\.dtype: .*; spec\.model\.renderer: found 'qwen3'",
        ),
        ({"batch": config().batch.model_copy(update={"mode": "opd"})}, r"spec\.algorithm\.mode: found 'opd'"),
    ],
)
def test_a_change_is_refused_by_name(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInputError, match=f"state of step 3: {told}.*another value takes a new run"):
        check_fixed(fixed_settings(config()), config(**changed), "state of step 3")


def test_environments_come_and_go_and_older_states_say_nothing() -> None:
    saved = fixed_settings(config())
    check_fixed(saved, config(train=[environment("third")], max_steps=9), "state")
    check_fixed({}, config(seed=77), "state")


def test_a_state_of_another_seed_is_not_gone_on_with(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    prepared(run)
    seal_step(store_of(tmp_path), 1, fixed=fixed_settings(config()))
    same = config(run_dir=str(tmp_path))
    assert read_disk(same, identity(), DiskRoom(), lambda: None).next_step == 2
    with pytest.raises(BadInputError, match=r"state of step 1: spec\.seed: found '77'"):
        read_disk(same.model_copy(update={"seed": 77}), identity(), DiskRoom(), lambda: None)
