import json
from pathlib import Path
from typing import Any

import pytest

from echorl_core.config import BatchConfig, FilterConfig, ModelConfig, OrchestratorConfig
from echorl_orchestrator.failures import BadInputError
from echorl_orchestrator.rollout.rollout import vocab_size
from echorl_testing.manifests.role_config import orchestrator_config


def config(folder: Path, kind: Any = "gibberish") -> OrchestratorConfig:
    batch = BatchConfig(
        group_size=2, batch_size=4, max_staleness=1, seq_len=64, num_ranks=1, filters=[FilterConfig(type=kind)]
    )
    model = ModelConfig(path=str(folder), dtype="float32", max_model_len=64, renderer="compact")
    return orchestrator_config(folder, batch=batch, model=model)


def test_the_vocabulary_is_read_where_a_filter_asks_for_it(tmp_path: Path) -> None:
    assert vocab_size(config(tmp_path, "repetition")) is None
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 151_936}))
    assert vocab_size(config(tmp_path)) == 151_936


@pytest.mark.parametrize("found", [{}, {"vocab_size": 0}, {"vocab_size": "many"}, {"vocab_size": True}])
def test_a_model_that_does_not_tell_is_refused(tmp_path: Path, found: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(found))
    message = f"^filter gibberish: {tmp_path}/config.json: found vocab_size .*, accepted is a number from 1$"
    with pytest.raises(BadInputError, match=message):
        vocab_size(config(tmp_path))
